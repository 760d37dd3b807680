//! Servers whose services do what the test says.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
};

use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, Response};
use tower::Service;
use tower_outbound::{
    balance::{BalanceServices, RoundRobin},
    call::{BoxError, Endpoint, Services},
};

pub(crate) type Req = Request<()>;
pub(crate) type Rsp = Response<String>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ready {
    Yes,
    Busy,
    Broken,
}

/// What all services that go to one server share.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    ready: Mutex<(Ready, Vec<Waker>)>,
    /// Calls that have an answer wait for this one, if there is one.
    pub(crate) gate: tokio::sync::Semaphore,
    pub(crate) fails: Mutex<bool>,
    /// How often a service of it was asked for readiness, and called, and by which address.
    pub(crate) asked: AtomicUsize,
    pub(crate) calls: AtomicUsize,
    pub(crate) uris: Mutex<Vec<String>>,
    /// How many services of it there are.
    pub(crate) instances: Arc<()>,
}

impl Server {
    pub(crate) fn new(name: &'static str) -> Arc<Self> {
        Server::that_is(name, Ready::Yes)
    }

    pub(crate) fn that_is(name: &'static str, ready: Ready) -> Arc<Self> {
        Arc::new(Server {
            name,
            ready: Mutex::new((ready, Vec::new())),
            gate: tokio::sync::Semaphore::new(1_000_000),
            fails: Mutex::new(false),
            asked: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            uris: Mutex::default(),
            instances: Arc::default(),
        })
    }

    pub(crate) fn becomes(&self, ready: Ready) {
        let wakers = {
            let mut state = self.ready.lock().unwrap();
            state.0 = ready;
            std::mem::take(&mut state.1)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is(&self) -> Ready {
        self.ready.lock().unwrap().0
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(SeqCst)
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(SeqCst)
    }

    pub(crate) fn instances(&self) -> usize {
        Arc::strong_count(&self.instances) - 1
    }

    pub(crate) fn service(self: &Arc<Self>) -> To {
        To {
            server: self.clone(),
            readied: false,
            _instance: self.instances.clone(),
        }
    }
}

/// A service that goes to a server. A clone has not been asked, whatever it is a clone of.
pub(crate) struct To {
    server: Arc<Server>,
    readied: bool,
    _instance: Arc<()>,
}

impl Clone for To {
    fn clone(&self) -> Self {
        self.server.service()
    }
}

impl<R: Uri> Service<R> for To {
    type Response = Rsp;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Rsp, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.server.asked.fetch_add(1, SeqCst);
        let mut state = self.server.ready.lock().unwrap();
        match state.0 {
            Ready::Yes => {
                self.readied = true;
                Poll::Ready(Ok(()))
            }
            Ready::Busy => {
                state.1.push(cx.waker().clone());
                Poll::Pending
            }
            Ready::Broken => Poll::Ready(Err(format!("{} is broken", self.server.name).into())),
        }
    }

    fn call(&mut self, request: R) -> Self::Future {
        assert!(
            std::mem::take(&mut self.readied),
            "an instance is called that was not found ready"
        );
        let server = self.server.clone();
        server.calls.fetch_add(1, SeqCst);
        server.uris.lock().unwrap().push(request.uri());
        async move {
            server.gate.acquire().await?.forget();
            server.gate.add_permits(1);
            if *server.fails.lock().unwrap() {
                return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into());
            }
            Ok(Response::new(server.name.to_owned()))
        }
        .boxed()
    }
}

pub(crate) trait Uri {
    fn uri(&self) -> String;
}

impl Uri for Req {
    fn uri(&self) -> String {
        Request::uri(self).to_string()
    }
}

impl Uri for &'static str {
    fn uri(&self) -> String {
        (*self).to_owned()
    }
}

pub(crate) fn endpoint(name: &str) -> Endpoint {
    Endpoint::builder(format!("http://{name}"))
        .key(name)
        .build()
        .unwrap()
}

pub(crate) fn servers<const N: usize>(names: [&'static str; N]) -> [Arc<Server>; N] {
    names.map(Server::new)
}

pub(crate) fn services<'a>(servers: impl IntoIterator<Item = &'a Arc<Server>>) -> Services<To> {
    servers
        .into_iter()
        .map(|server| (endpoint(server.name), server.service()))
        .collect()
}

/// By turns, so that a test can say who is picked next.
pub(crate) fn in_turn(services: &Services<To>) -> BalanceServices<To, RoundRobin> {
    BalanceServices::new(services.clone()).rule(RoundRobin::new())
}

pub(crate) fn get() -> Req {
    Request::get("/17").body(()).unwrap()
}

pub(crate) fn post() -> Req {
    Request::post("/17").body(()).unwrap()
}

/// What an error and its sources say.
pub(crate) fn told(error: &(dyn std::error::Error + 'static)) -> String {
    let levels = tower_outbound::call::chain(error).map(ToString::to_string);
    levels.collect::<Vec<_>>().join("; ")
}
