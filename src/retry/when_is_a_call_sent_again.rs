#![doc = include_str!("when_is_a_call_sent_again.md")]

/// The page is made from the policies: `UPDATE_WHEN_SENT_AGAIN=1` writes it anew, and without that one that is out of
/// date fails.
#[cfg(test)]
mod tests {
    use std::{env, fmt::Write, fs};

    use http::{Request, StatusCode};
    use tokio::time::Duration;

    use crate::{
        call::{
            BoxError, Fault, FaultError, FaultKind, NotRetried, ReadPhase, Rejection, Semantics, Sent,
            StatusSet,
        },
        retry::{Backoff, FailedAttempt, Idempotent, RetryPolicy, drive::Drive},
    };

    const PAGE: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/src/retry/when_is_a_call_sent_again.md"
    );

    const UPDATE: &str = "UPDATE_WHEN_SENT_AGAIN";

    const REQUESTS: [(&str, Semantics); 6] = [
        ("GET", Semantics::READ),
        ("HEAD, OPTIONS, TRACE", Semantics::SAFE),
        ("PUT, DELETE", Semantics::IDEMPOTENT),
        ("POST, PATCH, others", Semantics::UNSAFE),
        ("PUT, DELETE with a key", Semantics::IDEMPOTENT.keyed(true)),
        ("any with a key", Semantics::UNSAFE.keyed(true)),
    ];

    /// How far an attempt came, and what was wrong with it.
    struct Phase {
        name: &'static str,
        kind: FaultKind,
        sent: Sent,
        wait: Option<Duration>,
        /// Does it come as an error, or as an answer that the layer was told to read?
        is_error: bool,
    }

    impl Phase {
        const fn new(name: &'static str, kind: FaultKind, sent: Sent) -> Phase {
            Phase {
                name,
                kind,
                sent,
                wait: None,
                is_error: true,
            }
        }
    }

    const UNAVAILABLE: FaultKind = FaultKind::Status(StatusCode::SERVICE_UNAVAILABLE);

    const PHASES: [Phase; 11] = [
        Phase::new("refused", FaultKind::ConnectRefused, Sent::No),
        Phase::new("connect timeout", FaultKind::ConnectTimeout, Sent::No),
        Phase::new("broken, nothing sent on proof", FaultKind::Closed, Sent::No),
        Phase::new("reset or closed", FaultKind::Closed, Sent::Maybe),
        Phase::new(
            "read timeout",
            FaultKind::ReadTimeout(ReadPhase::Head),
            Sent::Maybe,
        ),
        Phase::new(
            "body stalled",
            FaultKind::ReadTimeout(ReadPhase::Body),
            Sent::Maybe,
        ),
        Phase::new(
            "error 500",
            FaultKind::Status(StatusCode::INTERNAL_SERVER_ERROR),
            Sent::Maybe,
        ),
        Phase::new("error 503", UNAVAILABLE, Sent::Maybe),
        Phase {
            wait: Some(Duration::from_secs(1)),
            ..Phase::new("error 503 with `Retry-After`", UNAVAILABLE, Sent::Maybe)
        },
        Phase::new("gRPC UNAVAILABLE", FaultKind::Grpc(14), Sent::Maybe),
        Phase {
            is_error: false,
            ..Phase::new("answer in `retry_statuses`", UNAVAILABLE, Sent::Maybe)
        },
    ];

    /// What the policy, as it drives the loop, says of a first attempt that ended so.
    fn decided<P: RetryPolicy>(policy: &P, semantics: Semantics, phase: &Phase) -> Result<(), NotRetried> {
        let fault = Fault::new(phase.kind, phase.sent).with_retry_after(phase.wait);
        let error: BoxError = FaultError::new(fault, "as a client would say").into();
        let failed = FailedAttempt {
            semantics,
            fault,
            may_have_been_sent: false,
            error: phase.is_error.then_some(&*error),
            attempts: 1,
            here: 1,
            moves: 0,
            paused: Duration::ZERO,
            can_move_on: false,
            had_a_choice: true,
        };
        let mut policy = policy.clone();
        Drive::<Request<()>, (), BoxError>::decide(&mut policy, None, None, &failed).map(|_| ())
    }

    fn is_sent_again<P: RetryPolicy>(policy: &P, semantics: Semantics, phase: &Phase) -> bool {
        let again = decided(policy, semantics, phase).is_ok();
        // What may be sent again has to be kept.
        assert!(!again || policy.may_retry(semantics));
        again
    }

    /// The defaults: each request at each phase.
    fn defaults() -> String {
        let (backoff, idempotent) = (Backoff::default(), Idempotent::default());
        // What counts is the key, whatever the method.
        let shown = [0, 1, 2, 3, 5];
        let mut table = String::from("| what happened |");
        for n in shown {
            write!(table, " {} |", REQUESTS[n].0).unwrap();
        }
        table.push('\n');
        table.push_str(&"| --- ".repeat(shown.len() + 1));
        table.push_str("|\n");
        for phase in &PHASES {
            write!(table, "| {} |", phase.name).unwrap();
            let cells = REQUESTS.map(|(_, semantics)| {
                match (
                    is_sent_again(&idempotent, semantics, phase),
                    is_sent_again(&backoff, semantics, phase),
                ) {
                    (true, true) => "yes",
                    (false, true) => "after a pause",
                    (true, false) => "at once",
                    (false, false) => "no",
                }
            });
            assert_eq!(cells[4], cells[5]);
            for n in shown {
                write!(table, " {} |", cells[n]).unwrap();
            }
            table.push('\n');
        }
        table
    }

    /// Which requests a policy sends again at a phase. Bold: some of them may be carried out twice.
    fn cell<P: RetryPolicy>(policy: &P, phase: &Phase) -> String {
        let again = REQUESTS.map(|(_, semantics)| is_sent_again(policy, semantics, phase));
        let words = match again {
            [false, false, false, false, false, false] => "none",
            [true, false, false, false, false, false] => "GET",
            [true, true, false, false, true, true] => "safe, keyed",
            [true, true, true, false, true, false] => "idempotent",
            [true, true, true, false, true, true] => "idempotent, keyed",
            [true, true, true, true, true, true] => "all",
            other => panic!("no word for {other:?}"),
        };
        let [.., others, _, _] = again;
        if others && phase.sent == Sent::Maybe {
            format!("**{words}**")
        } else {
            words.to_owned()
        }
    }

    fn row<P: RetryPolicy>(name: &str, policy: P) -> String {
        let cells: Vec<_> = PHASES.iter().map(|phase| cell(&policy, phase)).collect();
        format!("| {name} | {} |\n", cells.join(" | "))
    }

    /// Each preset and each choice.
    fn settings() -> String {
        let mut table = String::from("| |");
        PHASES
            .iter()
            .for_each(|phase| write!(table, " {} |", phase.name).unwrap());
        table.push('\n');
        table.push_str(&"| --- ".repeat(PHASES.len() + 1));
        table.push_str("|\n");
        let second = Duration::from_secs(1);
        let feign = || Backoff::feign(second / 10, second, 5).unwrap();
        let builder = Backoff::builder;
        let backoff = "crate::retry::BackoffBuilder";
        let idempotent = "crate::retry::Idempotent";
        let named = |of: &str, name: &str, path: String| format!("{of}[`{name}`]({path})");
        for (name, policy) in [
            ("`Backoff::default()`".to_owned(), Backoff::default()),
            (
                named(
                    "its ",
                    "idempotent_methods()",
                    format!("{backoff}::idempotent_methods"),
                ),
                builder().idempotent_methods().build().unwrap(),
            ),
            (
                named(
                    "its ",
                    "retry_unsafe_that_may_have_been_sent()",
                    format!("{backoff}::retry_unsafe_that_may_have_been_sent"),
                ),
                builder().retry_unsafe_that_may_have_been_sent().build().unwrap(),
            ),
            (
                named(
                    "",
                    "Backoff::feign(..)",
                    "crate::retry::Backoff::feign".to_owned(),
                ),
                feign(),
            ),
            (
                named(
                    "its ",
                    "retry_undated(503)",
                    "crate::retry::Backoff::retry_undated".to_owned(),
                ),
                feign().retry_undated(StatusSet::EMPTY.with(StatusCode::SERVICE_UNAVAILABLE)),
            ),
        ] {
            table.push_str(&row(&name, policy));
        }
        let all = "ok_to_retry_on_all_operations";
        for (name, policy) in [
            ("`Idempotent::default()`".to_owned(), Idempotent::default()),
            (
                named(
                    "its ",
                    "idempotent_methods()",
                    format!("{idempotent}::idempotent_methods"),
                ),
                Idempotent::default().idempotent_methods(),
            ),
            (
                named("its ", &format!("{all}()"), format!("{idempotent}::{all}")),
                Idempotent::default().ok_to_retry_on_all_operations(),
            ),
            (
                named("", "Idempotent::ribbon()", format!("{idempotent}::ribbon")),
                Idempotent::ribbon(),
            ),
            (
                format!("its `{all}()`"),
                Idempotent::ribbon().ok_to_retry_on_all_operations(),
            ),
            (
                named(
                    "",
                    "Idempotent::ribbon_spring_retry()",
                    format!("{idempotent}::ribbon_spring_retry"),
                ),
                Idempotent::ribbon_spring_retry(),
            ),
            (
                format!("its `{all}()`"),
                Idempotent::ribbon_spring_retry().ok_to_retry_on_all_operations(),
            ),
            (
                named(
                    "",
                    "Idempotent::ribbon_default_handler()",
                    format!("{idempotent}::ribbon_default_handler"),
                ),
                Idempotent::ribbon_default_handler(),
            ),
        ] {
            table.push_str(&row(&name, policy));
        }
        table
    }

    /// The name of a reason, and whose it is. Without a wildcard: a new one needs its line.
    fn told_by(reason: NotRetried) -> (&'static str, &'static str) {
        match reason {
            NotRetried::MayHaveBeenSent => ("MayHaveBeenSent", "the policy"),
            NotRetried::NotTransient => ("NotTransient", "the policy"),
            NotRetried::NotByRule => ("NotByRule", "the policy"),
            NotRetried::Rejected => ("Rejected", "the loop, for each policy of this crate"),
            NotRetried::NoEndpoint => ("NoEndpoint", "the loop, for each policy of this crate"),
            NotRetried::AttemptsUsedUp { .. } => ("AttemptsUsedUp", "the policy"),
            NotRetried::RetryAfterTooLong { .. } => ("RetryAfterTooLong", "the policy"),
            NotRetried::CallAttemptsUsedUp { .. } => (
                "CallAttemptsUsedUp",
                "[`attempts_in_call`](crate::retry::RetryLayer::attempts_in_call)",
            ),
            NotRetried::DeadlineTooClose { .. } => ("DeadlineTooClose", "the deadline of the call"),
            NotRetried::BodyNotRepeatable => ("BodyNotRepeatable", "the request"),
            NotRetried::BodyBeyondCap { .. } => ("BodyBeyondCap", "the request"),
            NotRetried::BudgetSpent => ("BudgetSpent", "the [budget](crate::call::RetryBudget)"),
            NotRetried::NotReady => ("NotReady", "the service below"),
        }
    }

    /// In the order in which they are asked.
    fn reasons() -> String {
        let second = Duration::from_secs(1);
        let mut table = String::from("| reason | told by | as the trail says it |\n| --- | --- | --- |\n");
        for reason in [
            NotRetried::Rejected,
            NotRetried::NoEndpoint,
            NotRetried::NotTransient,
            NotRetried::MayHaveBeenSent,
            NotRetried::NotByRule,
            NotRetried::AttemptsUsedUp { limit: 2 },
            NotRetried::RetryAfterTooLong {
                asked: 60 * second,
                limit: 10 * second,
            },
            NotRetried::CallAttemptsUsedUp { limit: 4 },
            NotRetried::DeadlineTooClose {
                pause: 3 * second,
                left: 2 * second,
            },
            NotRetried::BodyNotRepeatable,
            NotRetried::BodyBeyondCap { cap: 65_536 },
            NotRetried::BudgetSpent,
            NotRetried::NotReady,
        ] {
            let (name, by) = told_by(reason);
            writeln!(
                table,
                "| [`{name}`](crate::call::NotRetried::{name}) | {by} | {reason} |"
            )
            .unwrap();
        }
        table
    }

    fn page() -> String {
        format!(
            "When is a call sent again?\n\n\
             A request that a server may have seen is sent again only where a second time does no harm: it is safe \
             (GET, HEAD, OPTIONS, TRACE), or it has an `Idempotency-Key`. Any other is sent again only where it is \
             proved that nothing was sent. That is the default of both layers that retry; other rules have to be \
             chosen.\n\n\
             This page is made from the policies, and a test fails where it differs from what they do.\n\n\
             # By default\n\n\
             For a first attempt that ended as the line says, and a request as the column says. *yes*: \
             [`Idempotent`](crate::retry::Idempotent) sends it again at once, and above it \
             [`Backoff`](crate::retry::Backoff) after a pause. *after a pause*: only the latter does. *error*: a status \
             that a `StatusErrorClassifier` between the two made an error. *body stalled*: where a layer below reads \
             the body; one that was handed on is never sent again.\n\n{}\n\
             A call that was turned away on this side (an open circuit, a full bulkhead, no endpoint) is never sent \
             again, whatever the rule.\n\n\
             # By each rule\n\n\
             Which requests are sent again. **Bold: a POST may be carried out twice.** *safe*: GET, HEAD, OPTIONS, \
             TRACE; *idempotent*: those, PUT and DELETE (RFC 9110, section 9.2); *keyed*: with an \
             `Idempotency-Key`.\n\n{}\n\
             Idempotent requests can be added to Ribbon's rules as well. A policy that was written for `tower::retry` \
             decides alone.\n\n\
             # When it is not\n\n\
             What the policy wants is then held against the rest, in this order. The first that is against it is in \
             the [trail](crate::call::Trail) of the call, and the error or the answer of the last attempt is returned \
             as it is:\n\n{}",
            defaults(),
            settings(),
            reasons()
        )
    }

    #[test]
    fn the_page_says_what_the_policies_do() {
        let page = page();
        if env::var_os(UPDATE).is_some() {
            fs::write(PAGE, &page).unwrap();
        }
        let written = fs::read_to_string(PAGE).unwrap();
        assert!(written == page, "{PAGE} is out of date: {UPDATE}=1");
    }

    #[test]
    fn what_the_page_says_beside_its_tables_holds() {
        let second = Duration::from_secs(1);
        let backoffs = [
            Backoff::default(),
            Backoff::builder()
                .retry_unsafe_that_may_have_been_sent()
                .build()
                .unwrap(),
            Backoff::feign(second, second, 5).unwrap(),
        ];
        let all = Idempotent::ribbon_default_handler().ok_to_retry_on_all_operations();
        for kind in [
            FaultKind::Rejected(Rejection::Breaker),
            FaultKind::Rejected(Rejection::Bulkhead),
            FaultKind::Rejected(Rejection::Limit),
            FaultKind::NoEndpoint,
        ] {
            let phase = Phase::new("turned away", kind, Sent::No);
            for (_, semantics) in REQUESTS {
                for policy in &backoffs {
                    assert!(!is_sent_again(policy, semantics, &phase));
                }
                assert!(!is_sent_again(&all, semantics, &phase));
            }
        }
        // A reset is the same as a close to all of them.
        let (reset, closed) = (
            Phase::new("reset", FaultKind::Reset, Sent::Maybe),
            Phase::new("closed", FaultKind::Closed, Sent::Maybe),
        );
        let others = [
            all,
            Idempotent::default(),
            Idempotent::ribbon(),
            Idempotent::ribbon_spring_retry(),
            Idempotent::ribbon_default_handler(),
        ];
        assert!(
            backoffs
                .iter()
                .all(|policy| cell(policy, &reset) == cell(policy, &closed))
        );
        assert!(
            others
                .iter()
                .all(|policy| cell(policy, &reset) == cell(policy, &closed))
        );
    }
}
