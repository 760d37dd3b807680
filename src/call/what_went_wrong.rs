#![doc = include_str!("fault/what_went_wrong.md")]

#[cfg(test)]
mod tests {
    use std::{error::Error, io, time::Duration};

    use http::{HeaderMap, Response, StatusCode};

    use crate::call::{
        AnswerBodyFailed, BoxError, BulkheadFull, ByFault, CircuitOpen, CircuitState, Classify,
        ConnectTimedOut, ErrorRef, ExecutionTimedOut, FallbackRejected, Fault, FaultError, FaultKind,
        GrpcCode, GrpcError, NoEndpoint, NoTimeLeft, NotReady, ReadPhase, ReadTimedOut, Rejection,
        RequestBodyFailed, Sent, StatusError, Verdict,
    };

    /// The first cell of a row, and the cells for `Sent` and the verdict.
    fn rows() -> Vec<[&'static str; 3]> {
        include_str!("fault/what_went_wrong.md")
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
            .map(|(kind, rest)| {
                let cells: Vec<_> = rest.split(" | ").collect();
                assert_eq!(cells.len(), 6, "{kind}");
                [kind, cells[1], cells[2]]
            })
            .collect()
    }

    fn status(code: u16, verdict: Verdict) -> BoxError {
        let (mut head, ()) = Response::new(()).into_parts();
        head.status = StatusCode::from_u16(code).unwrap();
        StatusError::new(head, verdict, "".into(), true, None).into()
    }

    fn grpc(code: GrpcCode) -> BoxError {
        GrpcError::new(code, HeaderMap::new(), code.verdict()).into()
    }

    fn of_kind(kind: FaultKind, sent: Sent) -> BoxError {
        FaultError::new(Fault::new(kind, sent), "as a client would say").into()
    }

    /// An error of each row, made by whoever makes it.
    fn errors() -> Vec<(&'static str, BoxError)> {
        let limit = Duration::from_secs(1);
        let io = |kind: io::ErrorKind| BoxError::from(io::Error::from(kind));
        let cut = |source| AnswerBodyFailed::new(StatusCode::OK, 7, source);
        vec![
            ("ConnectRefused", io(io::ErrorKind::ConnectionRefused)),
            ("ConnectTimeout", ConnectTimedOut::new(limit, "a:1".into()).into()),
            ("Connect", of_kind(FaultKind::Connect, Sent::No)),
            ("NotReady", NotReady::new("LoadBalance", "gone".into()).into()),
            ("Write", RequestBodyFailed::new("gone".into()).into()),
            ("Write", io(io::ErrorKind::WriteZero)),
            (
                "ReadTimeout(Head)",
                ReadTimedOut::new(limit, ReadPhase::Head).into(),
            ),
            (
                "ReadTimeout(Body)",
                ReadTimedOut::new(limit, ReadPhase::Body).into(),
            ),
            (
                "ReadTimeout(Body)",
                cut(ReadTimedOut::new(limit, ReadPhase::Body).into()).into(),
            ),
            ("Reset", io(io::ErrorKind::ConnectionReset)),
            ("Closed", io(io::ErrorKind::UnexpectedEof)),
            ("Protocol", of_kind(FaultKind::Protocol, Sent::Maybe)),
            ("Status(404)", status(404, Verdict::Ignored)),
            ("Status(500)", status(500, Verdict::Failure)),
            ("Status(503)", status(503, Verdict::Failure)),
            ("Grpc(5)", grpc(GrpcCode::NotFound)),
            ("Grpc(13)", grpc(GrpcCode::Internal)),
            ("Grpc(14)", grpc(GrpcCode::Unavailable)),
            // As a client says it that has errors of its own.
            ("Grpc(5)", of_kind(FaultKind::Grpc(5), Sent::Maybe)),
            ("Grpc(14)", of_kind(FaultKind::Grpc(14), Sent::Maybe)),
            (
                "Rejected(Breaker)",
                CircuitOpen::new("orders".into(), CircuitState::Open, None).into(),
            ),
            (
                "Rejected(Bulkhead)",
                BulkheadFull::new("orders".into(), [1, 1], [0, 0], limit).into(),
            ),
            (
                "Rejected(Limit)",
                of_kind(FaultKind::Rejected(Rejection::Limit), Sent::No),
            ),
            (
                "Rejected(Budget)",
                of_kind(FaultKind::Rejected(Rejection::Budget), Sent::No),
            ),
            ("NoEndpoint", NoEndpoint::new(true, limit).into()),
            ("ExecutionTimeout", ExecutionTimedOut::new(limit).into()),
            ("Other", "never heard of".into()),
        ]
    }

    /// The row of a kind. Without a wildcard: a new kind needs a row.
    fn row(kind: FaultKind) -> String {
        match kind {
            FaultKind::ReadTimeout(phase) => format!("ReadTimeout({phase:?})"),
            FaultKind::Status(status) => format!("Status({})", status.as_u16()),
            FaultKind::ConnectRefused
            | FaultKind::ConnectTimeout
            | FaultKind::Connect
            | FaultKind::NotReady
            | FaultKind::Write
            | FaultKind::Reset
            | FaultKind::Closed
            | FaultKind::Protocol
            | FaultKind::Grpc(_)
            | FaultKind::Rejected(_)
            | FaultKind::NoEndpoint
            | FaultKind::ExecutionTimeout
            | FaultKind::Other => format!("{kind:?}"),
        }
    }

    fn judged(error: &(dyn Error + Send + Sync + 'static)) -> [String; 3] {
        let fault = Fault::of(error);
        let sent = match fault.sent() {
            Sent::No => "no",
            Sent::Maybe => "maybe",
        };
        let error: ErrorRef<'_> = error;
        let verdict = match Classify::<()>::classify(&ByFault, Err(error)) {
            Verdict::Success => "success",
            Verdict::Failure => "failure",
            Verdict::Ignored => "ignored",
        };
        [row(fault.kind()), sent.into(), verdict.into()]
    }

    #[test]
    fn the_page_says_what_is_read_off_each_error() {
        let rows = rows();
        let mut seen = Vec::new();
        for (name, error) in errors() {
            let published = rows
                .iter()
                .find(|row| row[0] == name)
                .unwrap_or_else(|| panic!("no row of {name}"));
            assert_eq!(judged(&*error), published.map(str::to_owned), "{error}");
            seen.push(name);
        }
        for row in &rows {
            assert!(seen.contains(&row[0]), "{} is not checked", row[0]);
        }
        assert_eq!(rows.len(), 23);
    }

    #[test]
    fn what_the_page_says_beside_the_table_holds() {
        let late = Fault::of(&NoTimeLeft::new("BackoffRetry"));
        assert_eq!(late, Fault::new(FaultKind::ExecutionTimeout, Sent::No));
        let fallback = FallbackRejected::new(1, status(404, Verdict::Ignored));
        assert_eq!(Verdict::of(&fallback), Verdict::Ignored);
        let fault = Fault::of(&fallback);
        assert_eq!(fault.kind(), FaultKind::Rejected(Rejection::Fallback));
        assert_eq!(fault.sent(), Sent::Maybe);
    }
}
