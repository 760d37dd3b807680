//! The clients at the bottom of the stacks, and what stands right above them: it numbers the attempts, tells the ledger
//! which are alive, and sends some astray, as the plan wants.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{
    Request, Response, StatusCode, Uri,
    header::{HOST, RETRY_AFTER},
    uri::Authority,
};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use tower::{Layer, Service, util::BoxCloneSyncService};
use tower_outbound::{
    call::{BoxError, Fault, FaultKind, Sent, chain},
    nest::client::Client,
    timeout::{ConnectTimeoutLayer, UploadBody},
};

use super::server::{Protocol, path};
use crate::{
    body::CallBody,
    ledger::{Alive, Ledger},
    schedule::{Act, CALL, Plan},
    stacks::StackKind,
};

/// What a call goes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wire {
    pub protocol: Protocol,
    /// Is it the crate's own client, whose connections count? Otherwise it is hyper-util's, as it is.
    pub counting: bool,
}

impl Wire {
    pub const ALL: [Wire; 4] = [
        Wire {
            protocol: Protocol::Http1,
            counting: true,
        },
        Wire {
            protocol: Protocol::Http2,
            counting: true,
        },
        Wire {
            protocol: Protocol::Http1,
            counting: false,
        },
        Wire {
            protocol: Protocol::Http2,
            counting: false,
        },
    ];
}

type Outgoing = Request<UploadBody<CallBody>>;
pub type Raw = BoxCloneSyncService<Request<Watched>, Response<Incoming>, BoxError>;

/// The client itself.
pub fn client(wire: Wire, limit: Duration) -> Result<Raw, BoxError> {
    let is_http2 = wire.protocol == Protocol::Http2;
    if wire.counting {
        let mut client = Client::builder().connect_limit(limit);
        if is_http2 {
            client = client.http2_only();
        }
        return Ok(Raw::new(client.build_http()?));
    }
    let connector = ConnectTimeoutLayer::new(limit)?.layer(HttpConnector::new());
    let client: legacy::Client<_, Watched> = legacy::Client::builder(TokioExecutor::new())
        .http2_only(is_http2)
        .build(connector);
    Ok(Raw::new(tower::util::MapErr::new(
        client,
        |error: legacy::Error| BoxError::from(error),
    )))
}

/// Where attempts go that are to come nowhere.
#[derive(Debug, Clone)]
pub struct Detours {
    /// Nobody listens.
    pub closed: Authority,
    /// The connect gets no answer.
    pub full: Authority,
    /// Each connection is ended at once.
    pub doors: Authority,
}

impl Detours {
    fn of(&self, act: Act) -> Option<&Authority> {
        match act {
            Act::Refuse => Some(&self.closed),
            Act::StallConnect => Some(&self.full),
            Act::CloseUnused | Act::CloseUnread => Some(&self.doors),
            _ => None,
        }
    }
}

/// What the client was told of each attempt, call by call. `None`: it was given up before it had ended.
#[derive(Debug)]
pub struct Observed(Mutex<Vec<Vec<Option<Told>>>>);

/// What the client was told of an attempt.
#[derive(Debug, Clone)]
pub struct Told {
    /// The act that it has to take it for.
    pub act: Act,
    /// The error, if it says that nothing was sent.
    pub proof: Option<String>,
}

impl Observed {
    pub fn new(calls: usize) -> Arc<Observed> {
        Arc::new(Observed(Mutex::new(vec![Vec::new(); calls])))
    }

    pub fn take(&self) -> Vec<Vec<Option<Told>>> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    fn note(&self, call: u64, attempt: usize, told: Told) {
        let mut all = self.0.lock().unwrap();
        if let Some(attempts) = all.get_mut(call as usize) {
            attempts.resize(attempts.len().max(attempt + 1), None);
            attempts[attempt] = Some(told);
        }
    }
}

impl Told {
    fn of<B>(stack: StackKind, result: &Result<Response<B>, BoxError>) -> Told {
        let proof = result
            .as_ref()
            .err()
            .filter(|error| Fault::of(&***error).sent() == Sent::No);
        Told {
            act: act(stack, result),
            proof: proof.map(|error| format!("{:?}: {error:?}", Fault::of(&**error))),
        }
    }
}

/// The act that a client which is told this has to take it for.
fn act<B>(stack: StackKind, result: &Result<Response<B>, BoxError>) -> Act {
    let error = match result {
        Ok(answer) => {
            let status = answer.status().as_u16();
            let after = answer.headers().get(RETRY_AFTER);
            let after = after.map(|after| after.to_str().unwrap().parse().unwrap());
            let is = |act: &Act| act.status() == Some((status, after));
            return Act::ALL.into_iter().find(is).expect("no server answers so");
        }
        Err(error) => error,
    };
    let fault = Fault::of(&**error);
    match (fault.sent(), fault.kind()) {
        (Sent::No, FaultKind::ConnectRefused) => Act::Refuse,
        (Sent::No, FaultKind::ConnectTimeout) => Act::StallConnect,
        // Of the body some may have been taken all the same.
        (Sent::No, FaultKind::Reset | FaultKind::Closed) => Act::GoAwayExcluding,
        (Sent::Maybe, FaultKind::Reset | FaultKind::Closed) => Act::CloseAfterRequest,
        (Sent::No, FaultKind::Connect) => {
            let was_reset = chain(&**error)
                .filter_map(|error| error.downcast_ref::<io::Error>())
                .any(|error| error.kind() == io::ErrorKind::ConnectionReset);
            // There is no act for one that fails in another way. Ribbon's rule takes it for no more than a connect
            // that got no answer; its default handler does not stay for it.
            if was_reset || stack == StackKind::RibbonDefaultHandler {
                Act::CloseUnused
            } else {
                Act::StallConnect
            }
        }
        (sent, kind) => panic!("{sent:?}, {kind:?} is new here: {error:?}"),
    }
}

/// Right above a client.
#[derive(Clone)]
pub struct Tracked {
    pub client: Raw,
    pub seed: u64,
    pub ledger: Arc<Ledger>,
    pub observed: Arc<Observed>,
    pub detours: Arc<Detours>,
}

impl Service<Outgoing> for Tracked {
    type Response = Response<Tracking>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Tracking>, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.client.poll_ready(cx)
    }

    fn call(&mut self, mut request: Outgoing) -> Self::Future {
        let call = request.headers()[CALL].to_str().unwrap().parse().unwrap();
        let alive = self.ledger.attempt(call);
        let plan = Plan::of(self.seed, call);
        let (stack, act) = (plan.stack, plan.act(alive.ordinal()));
        let authority = self.detours.of(act).or(request.uri().authority()).unwrap();
        let target: Uri = format!("http://{authority}{}", path(call, alive.ordinal()))
            .parse()
            .unwrap();
        request.headers_mut().remove(HOST);
        *request.uri_mut() = target;
        let (ledger, attempt) = (self.ledger.clone(), alive.ordinal());
        let response = self.client.call(request.map(|body| Watched {
            body,
            call,
            attempt,
            ledger,
        }));
        let observed = self.observed.clone();
        Box::pin(async move {
            let result = response.await;
            observed.note(call, alive.ordinal(), Told::of(stack, &result));
            let answer = result?;
            let is_success = answer.status() == StatusCode::OK;
            Ok(answer.map(|body| Tracking {
                body: Answer::Incoming { body },
                end: is_success.then_some(End {
                    observed,
                    call,
                    attempt,
                    act: Act::StallMidResponse,
                }),
                _alive: Some(alive),
            }))
        })
    }
}

/// The body of a request, which nobody reads on when the caller has left.
pub struct Watched {
    body: UploadBody<CallBody>,
    call: u64,
    attempt: usize,
    ledger: Arc<Ledger>,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        // Asked first: the caller may leave while this is polled, on another thread.
        let is_over = self.ledger.is_over(self.call, self.attempt);
        // A short body of known length leaves with the head, and is not followed.
        let is_followed = self.body.size_hint().exact().is_none();
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if is_over && is_followed && matches!(frame, Poll::Ready(Some(Ok(_)))) {
            self.ledger.piece_of(self.call, self.attempt);
        }
        frame.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

enum Answer {
    Incoming { body: Incoming },
    Full { body: Full<Bytes> },
}

/// The body of an answer: its attempt is alive until it is gone.
pub struct Tracking {
    body: Answer,
    end: Option<End>,
    _alive: Option<Alive>,
}

/// How the body of an answer ended.
struct End {
    observed: Arc<Observed>,
    call: u64,
    attempt: usize,
    act: Act,
}

impl Drop for Tracking {
    fn drop(&mut self) {
        let is_at_end = self.is_end_stream();
        if let Some(mut end) = self.end.take() {
            // After an error HTTP/2 says that it is at its end.
            if is_at_end && end.act == Act::StallMidResponse {
                end.act = Act::Answer;
            }
            let told = Told {
                act: end.act,
                proof: None,
            };
            end.observed.note(end.call, end.attempt, told);
        }
    }
}

impl From<Bytes> for Tracking {
    fn from(bytes: Bytes) -> Self {
        Tracking {
            body: Answer::Full {
                body: Full::new(bytes),
            },
            end: None,
            _alive: None,
        }
    }
}

impl Body for Tracking {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        match &mut this.body {
            Answer::Incoming { body } => {
                let frame = Pin::new(body).poll_frame(cx);
                if let Some(end) = &mut this.end {
                    match &frame {
                        Poll::Ready(None) => end.act = Act::Answer,
                        Poll::Ready(Some(Err(_))) => end.act = Act::CloseMidResponse,
                        _ => {}
                    }
                }
                frame.map_err(Into::into)
            }
            Answer::Full { body } => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Answer::Incoming { body } => body.is_end_stream(),
            Answer::Full { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Answer::Incoming { body } => body.size_hint(),
            Answer::Full { body } => body.size_hint(),
        }
    }
}
