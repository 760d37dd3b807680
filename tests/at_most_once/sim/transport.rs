//! A client in memory that does to each attempt what its plan says.
//!
//! Its errors are what a real client gives, as far as a layer can tell: those of io, a real `ConnectTimeout` around a
//! connector that stalls, and `FaultError` where hyper's client would add its proof. A body of unknown length is taken by
//! a task of its own, as hyper does, which does not end with the attempt by itself; one in hand leaves in one go.

use std::{
    future::{Future, pending},
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::{sync::oneshot, time::sleep};
use tower::{Layer, Service};
use tower_outbound::{
    call::{BoxError, Fault, FaultError, FaultKind, IDEMPOTENCY_KEY, Sent},
    timeout::{ConnectTimeoutLayer, UploadBody},
};

use crate::{
    body::CallBody,
    ledger::{Alive, Arrival, Ledger, Reach},
    schedule::{Act, CALL, Hash, Plan},
};

/// The client. Its clones are one.
#[derive(Clone)]
pub struct Transport(Arc<Net>);

struct Net {
    first: u64,
    plans: Arc<Vec<Plan>>,
    ledger: Arc<Ledger>,
    connect: ConnectTimeoutLayer,
}

impl Transport {
    /// For these plans, which are numbered in a row.
    pub fn new(plans: Arc<Vec<Plan>>, ledger: Arc<Ledger>, connect: Duration) -> Transport {
        Transport(Arc::new(Net {
            first: plans.first().map_or(0, |plan| plan.call),
            plans,
            ledger,
            connect: ConnectTimeoutLayer::new(connect).unwrap(),
        }))
    }
}

impl Service<Request<UploadBody<CallBody>>> for Transport {
    type Response = Response<SimBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<SimBody>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<UploadBody<CallBody>>) -> Self::Future {
        let number = request.headers()[CALL].to_str().unwrap().parse::<u64>().unwrap();
        let alive = self.0.ledger.attempt(number);
        Box::pin(attempt(self.0.clone(), number, alive, request))
    }
}

async fn attempt(
    net: Arc<Net>,
    number: u64,
    alive: Alive,
    request: Request<UploadBody<CallBody>>,
) -> Result<Response<SimBody>, BoxError> {
    let plan = &net.plans[(number - net.first) as usize];
    let ordinal = alive.ordinal();
    let act = plan.act(ordinal);
    let dial = Dial {
        act,
        latency: plan.latency(ordinal, 0),
    };
    net.connect.layer(dial).call(request.uri().clone()).await?;
    if act == Act::CloseUnused {
        return Err(Box::new(FaultError::unsent(io::Error::from(
            io::ErrorKind::UnexpectedEof,
        ))));
    }
    let key = request.headers().get(IDEMPOTENCY_KEY);
    let key = key.map(|key| Hash::of(key.as_bytes()));
    // What is in hand leaves in one go.
    let comes_bit_by_bit = plan.body.is_stream() && request.body().size_hint().exact().is_none();
    let upload = Upload {
        ledger: net.ledger.clone(),
        call: number,
        ordinal,
        pieces: act.pieces_taken(),
        gap: if comes_bit_by_bit {
            plan.latency(ordinal, 1)
        } else {
            Duration::ZERO
        },
        // A frame that is in hand is written in parts.
        halved: act == Act::CloseMidBody && !plan.body.is_stream(),
    };
    let came = if comes_bit_by_bit {
        let (tell, told) = oneshot::channel();
        let body = request.into_body();
        tokio::spawn(async move {
            upload
                .take_and_tell(body, act == Act::EarlyUnavailable, tell)
                .await;
        });
        match told.await {
            Ok(came) => came,
            // The body of the request ended in an error, and the server waits for the rest.
            Err(_) => return pending().await,
        }
    } else {
        upload.take(request.into_body()).await?
    };
    let whole = came.body == plan.body.pieces().0 as u64 * plan.body.pieces().1 as u64;
    let arrived = |reach, executed| {
        alive.arrived(Arrival {
            reach,
            body: came.body,
            hash: came.hash,
            key,
            executed,
        });
    };
    let read = if whole { Reach::Whole } else { Reach::Partly };
    let latency = plan.latency(ordinal, 2);
    let error = match act {
        Act::CloseUnread => io::ErrorKind::UnexpectedEof.into(),
        Act::CloseAfterHead => {
            arrived(read, false);
            io::ErrorKind::UnexpectedEof.into()
        }
        Act::CloseMidBody => {
            arrived(read, false);
            io::ErrorKind::ConnectionReset.into()
        }
        Act::EarlyUnavailable => {
            arrived(read, false);
            return Ok(answer(act, alive));
        }
        Act::RefusedStream | Act::GoAwayExcluding => {
            arrived(Reach::Disclaimed, false);
            return Err(disclaimed());
        }
        _ => {
            arrived(read, true);
            pause(latency).await;
            match act {
                Act::ResetAfterRequest | Act::ResetStream => io::ErrorKind::ConnectionReset.into(),
                Act::StallBeforeHead => return pending().await,
                _ => match act.status() {
                    Some(_) => return Ok(answer(act, alive)),
                    None => io::ErrorKind::UnexpectedEof.into(),
                },
            }
        }
    };
    let error: io::Error = error;
    Err(Box::new(error))
}

/// What a stream ends with of which the server says that it did not act on it.
fn disclaimed() -> BoxError {
    let fault = Fault::new(FaultKind::Reset, Sent::No);
    let error = io::Error::from(io::ErrorKind::ConnectionReset);
    Box::new(FaultError::new(fault, error))
}

/// A timer only where there is something to wait for.
async fn pause(latency: Duration) {
    if !latency.is_zero() {
        sleep(latency).await;
    }
}

/// A connector.
struct Dial {
    act: Act,
    latency: Duration,
}

impl Service<Uri> for Dial {
    type Response = ();
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (act, latency) = (self.act, self.latency);
        Box::pin(async move {
            pause(latency).await;
            match act {
                Act::Refuse => Err(io::ErrorKind::ConnectionRefused.into()),
                Act::StallConnect => pending().await,
                _ => Ok(()),
            }
        })
    }
}

/// Takes the body of a request, or the beginning of it.
struct Upload {
    ledger: Arc<Ledger>,
    call: u64,
    ordinal: usize,
    /// `None`: all.
    pieces: Option<usize>,
    gap: Duration,
    halved: bool,
}

/// What came of a body.
#[derive(Clone, Copy)]
struct Came {
    pieces: usize,
    body: u64,
    hash: Hash,
}

impl Default for Came {
    fn default() -> Came {
        Came {
            pieces: 0,
            body: 0,
            hash: Hash::new(),
        }
    }
}

impl Upload {
    async fn take(self, body: UploadBody<CallBody>) -> Result<Came, BoxError> {
        let mut body = pin!(body);
        let mut came = Came::default();
        while self.more(&came) && self.piece(body.as_mut(), &mut came).await? {}
        Ok(came)
    }

    /// Tells what has come when all is there, or, if it is early, after the first piece.
    async fn take_and_tell(self, body: UploadBody<CallBody>, early: bool, tell: oneshot::Sender<Came>) {
        let mut body = pin!(body);
        let mut came = Came::default();
        let mut tell = Some(tell);
        while self.more(&came) {
            match self.piece(body.as_mut(), &mut came).await {
                Ok(true) if early => tell.take().map(|tell| tell.send(came)),
                Ok(true) => continue,
                Ok(false) => break,
                // The server waits for the rest.
                Err(_) => return,
            };
        }
        tell.map(|tell| tell.send(came));
    }

    fn more(&self, came: &Came) -> bool {
        self.pieces.is_none_or(|most| came.pieces < most)
    }

    /// Takes a piece. False: there was none.
    async fn piece(
        &self,
        mut body: Pin<&mut UploadBody<CallBody>>,
        came: &mut Came,
    ) -> Result<bool, BoxError> {
        if came.pieces > 0 {
            pause(self.gap).await;
        }
        let Some(frame) = body.frame().await else {
            return Ok(false);
        };
        if let Ok(mut data) = frame?.into_data() {
            self.ledger.piece_of(self.call, self.ordinal);
            if self.halved {
                data.truncate(data.len() / 2);
            }
            came.body += data.len() as u64;
            came.hash.feed(&data);
            came.pieces += 1;
        }
        Ok(true)
    }
}

fn answer(act: Act, alive: Alive) -> Response<SimBody> {
    let (status, wait) = act.status().unwrap();
    let rest = match act {
        Act::CloseMidResponse => Rest::Closes,
        Act::StallMidResponse => Rest::Stalls,
        _ => Rest::Ends,
    };
    let mut response = Response::new(SimBody {
        alive: Some(alive),
        given: false,
        rest,
    });
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    if let Some(wait) = wait {
        let headers = response.headers_mut();
        headers.insert(http::header::RETRY_AFTER, HeaderValue::from(wait));
    }
    response
}

/// What follows the first bytes of an answer.
enum Rest {
    Ends,
    Closes,
    Stalls,
}

/// The body of an answer. The attempt is alive until its end.
pub struct SimBody {
    alive: Option<Alive>,
    given: bool,
    rest: Rest,
}

impl Body for SimBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.given {
            self.given = true;
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"answer")))));
        }
        let this = &mut *self;
        match this.rest {
            Rest::Stalls => return Poll::Pending,
            Rest::Closes if this.alive.take().is_some() => {
                let error = io::Error::from(io::ErrorKind::UnexpectedEof);
                return Poll::Ready(Some(Err(Box::new(error))));
            }
            _ => this.alive = None,
        }
        Poll::Ready(None)
    }
}
