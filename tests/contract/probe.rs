//! A scripted service that notices when it is not treated as tower asks, and gives of its own to whatever is called,
//! so that it can be counted what is left of it.
//!
//! It knows nothing of the crate under test: another package may take this file and `checks.rs` in by `#[path]`.

use std::{
    convert::Infallible,
    error::Error,
    fmt,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tower::{BoxError, Service, ServiceExt, util::BoxCloneSyncService};

/// What a layer is built over. Boxed, so that a probe, a limit over a probe and a buffer over a probe are one type;
/// a clone of it is a clone of what is inside.
pub(crate) type Inner<Req> = BoxCloneSyncService<Req, Response<ScriptedBody>, BoxError>;

/// A finished stack.
pub(crate) type Stack<Req> = BoxCloneSyncService<Req, Response<AnyBody>, BoxError>;

pub(crate) type AnyBody = UnsyncBoxBody<Bytes, BoxError>;

/// What stands in the body of each answer.
pub(crate) const ANSWER: &[u8] = b"seven";

/// A layer, or several, to be run through the checks.
pub(crate) trait Subject {
    /// What it is called with.
    type Request: Ask;
    /// What it calls with.
    type Below: Send + 'static;

    /// What it is able to do, so that it is not asked for more.
    const CAN: Can;

    /// Builds it. Each one that is built has a state of its own.
    fn build(inner: Inner<Self::Below>) -> Setup<Self::Request>;
}

/// What a subject is able to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Can {
    /// How many attempts a GET gets whose attempts all break.
    pub(crate) attempts: usize,
    /// Is it ready when the inner service is, and not before? A queue is not.
    pub(crate) passes_readiness_on: bool,
}

impl Can {
    /// One call is one attempt.
    pub(crate) const ONCE: Can = Can::attempts(1);

    pub(crate) const fn attempts(attempts: usize) -> Can {
        Can {
            attempts,
            passes_readiness_on: true,
        }
    }
}

/// A number, and how to read it.
pub(crate) type Gauge = (&'static str, Box<dyn Fn() -> u64>);

/// Something that is done to a subject.
pub(crate) type Deed = Box<dyn Fn()>;

/// A built subject, with the means to look at it and to bring it into states.
pub(crate) struct Setup<Req> {
    pub(crate) stack: Stack<Req>,
    /// What must be as before once a call has ended or was dropped.
    pub(crate) gauges: Vec<Gauge>,
    /// What must be as before once a further call has succeeded.
    pub(crate) health: Vec<Gauge>,
    /// States in which calls go through all the same. Each is entered, and then some time goes by.
    pub(crate) states: Vec<(&'static str, Deed, Duration)>,
    /// Makes it reject calls; and lets it go again.
    pub(crate) reject: Option<(Deed, Deed)>,
    /// Takes away what calls need besides the inner service, so that they wait; and gives it back.
    pub(crate) stall: Option<(Deed, Deed)>,
}

impl<Req: 'static> Setup<Req> {
    pub(crate) fn new<S, B>(stack: S) -> Self
    where
        S: Service<Req, Response = Response<B>, Error: Into<BoxError>, Future: Send + 'static>
            + Clone
            + Send
            + Sync
            + 'static,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let stack = stack
            .map_response(|response: Response<B>| {
                response.map(|body| body.map_err(Into::into).boxed_unsync())
            })
            .map_err(Into::into);
        Setup {
            stack: BoxCloneSyncService::new(stack),
            gauges: Vec::new(),
            health: Vec::new(),
            states: Vec::new(),
            reject: None,
            stall: None,
        }
    }
}

/// A request that can be made out of nothing, and carries a token where it has room for one.
pub(crate) trait Ask: Send + 'static {
    fn ask(token: Token) -> Self;
}

impl Ask for Uri {
    fn ask(_: Token) -> Uri {
        Uri::from_static("http://orders:80/7")
    }
}

impl Ask for Request<Full<Bytes>> {
    fn ask(token: Token) -> Self {
        let mut request = Request::get("http://orders/7").body(Full::default()).unwrap();
        request.extensions_mut().insert(token);
        request
    }
}

/// Is alive as long as one of its clones is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Token(Arc<()>);

impl Token {
    pub(crate) fn others(&self) -> u64 {
        Arc::strong_count(&self.0) as u64 - 1
    }
}

/// What an error of the probe says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Says {
    /// The attempt broke; a GET can be sent again.
    Broken,
    /// The service is dead for good.
    Dead,
}

#[derive(Debug)]
pub(crate) struct ProbeError {
    pub(crate) says: Says,
    source: io::Error,
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the probe says {:?}", self.says)
    }
}

impl Error for ProbeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

/// What a probe has said, however often it was wrapped.
pub(crate) fn said(error: &(dyn Error + Send + Sync + 'static)) -> Option<Says> {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<ProbeError>() {
            return Some(error.says);
        }
        next = error.source();
    }
    None
}

fn error(says: Says) -> BoxError {
    let source = io::ErrorKind::ConnectionReset.into();
    Box::new(ProbeError { says, source })
}

/// Shut until it is opened, for everybody, once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<(AtomicBool, Mutex<Vec<Waker>>)>);

impl Gate {
    pub(crate) fn open(&self) {
        self.0.0.store(true, SeqCst);
        let wakers = std::mem::take(&mut *self.0.1.lock().unwrap());
        wakers.into_iter().for_each(Waker::wake);
    }

    /// How many tasks wait at it.
    pub(crate) fn waiting(&self) -> usize {
        self.0.1.lock().unwrap().len()
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut wakers = self.0.1.lock().unwrap();
        if self.0.0.load(SeqCst) {
            return Poll::Ready(());
        }
        if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// How something that is waited for comes about.
#[derive(Debug, Clone, Default)]
pub(crate) enum Wait {
    #[default]
    None,
    /// After that many polls that find nothing, each of which wakes the task.
    Polls(usize),
    Gate(Gate),
    Panic,
    /// An error: for readiness, [`Says::Dead`].
    Error,
}

/// What a call comes to, once it has been waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Answer(u16),
    Break,
    PanicInCall,
    PanicInPoll,
}

/// What a probe does, by how many calls there were before.
pub(crate) struct Script {
    pub(crate) ready: Box<dyn Fn(usize) -> Wait + Send>,
    pub(crate) answer: Box<dyn Fn(usize) -> (Wait, Act) + Send>,
    pub(crate) body: Box<dyn Fn(usize) -> Wait + Send>,
}

impl Default for Script {
    fn default() -> Self {
        Script {
            ready: Box::new(|_| Wait::None),
            answer: Box::new(|_| (Wait::None, Act::Answer(200))),
            body: Box::new(|_| Wait::None),
        }
    }
}

impl Script {
    /// Each stage of each call needs that many polls more than one.
    pub(crate) fn slow(polls: usize, act: impl Fn(usize) -> Act + Send + 'static) -> Script {
        Script {
            ready: Box::new(move |_| Wait::Polls(polls)),
            answer: Box::new(move |n| (Wait::Polls(polls), act(n))),
            body: Box::new(move |_| Wait::Polls(polls)),
        }
    }

    /// Without any wait.
    pub(crate) fn at_once(act: impl Fn(usize) -> Act + Send + 'static) -> Script {
        Script {
            answer: Box::new(move |n| (Wait::None, act(n))),
            ..Script::default()
        }
    }
}

/// What all clones of a probe share, and a test looks at.
#[derive(Clone, Default)]
pub(crate) struct Watch(Arc<Shared>);

#[derive(Default)]
struct Shared {
    script: Mutex<Script>,
    faults: Mutex<Vec<&'static str>>,
    instances: Token,
    work: Token,
    ready_polls: AtomicUsize,
    answer_polls: AtomicUsize,
    calls: AtomicUsize,
    held: AtomicUsize,
    running: AtomicUsize,
}

impl Watch {
    pub(crate) fn new(script: Script) -> Watch {
        let watch = Watch::default();
        watch.plays(script);
        watch
    }

    pub(crate) fn plays(&self, script: Script) {
        *self.0.script.lock().unwrap() = script;
    }

    /// A service of its own.
    pub(crate) fn probe(&self) -> Probe {
        Probe {
            shared: self.0.clone(),
            _instance: self.0.instances.clone(),
            waited: 0,
            ready: false,
        }
    }

    /// The service, boxed as layers take it.
    pub(crate) fn inner<Req: Send + 'static>(&self) -> Inner<Req> {
        BoxCloneSyncService::new(self.probe())
    }

    pub(crate) fn calls(&self) -> usize {
        self.0.calls.load(SeqCst)
    }

    /// How often any instance was asked whether it is ready.
    pub(crate) fn ready_polls(&self) -> usize {
        self.0.ready_polls.load(SeqCst)
    }

    pub(crate) fn answer_polls(&self) -> usize {
        self.0.answer_polls.load(SeqCst)
    }

    /// How many instances have been found ready, and not called since.
    pub(crate) fn held(&self) -> usize {
        self.0.held.load(SeqCst)
    }

    /// How many calls are out.
    pub(crate) fn running(&self) -> usize {
        self.0.running.load(SeqCst)
    }

    /// How many requests, calls and bodies there are.
    pub(crate) fn work(&self) -> u64 {
        self.0.work.others()
    }

    pub(crate) fn instances(&self) -> u64 {
        self.0.instances.others()
    }

    pub(crate) fn ask<Req: Ask>(&self) -> Req {
        Req::ask(self.0.work.clone())
    }

    #[track_caller]
    pub(crate) fn found_no_fault(&self) {
        assert_eq!(*self.0.faults.lock().unwrap(), Vec::<&str>::new());
    }

    fn fault(&self, fault: &'static str) {
        self.0.faults.lock().unwrap().push(fault);
    }
}

/// An instance of the service. A clone has not been polled ready, whatever it is a clone of.
pub(crate) struct Probe {
    shared: Arc<Shared>,
    _instance: Token,
    waited: usize,
    ready: bool,
}

impl Clone for Probe {
    fn clone(&self) -> Self {
        Watch(self.shared.clone()).probe()
    }
}

impl Probe {
    fn let_go(&mut self) {
        if std::mem::take(&mut self.ready) {
            self.shared.held.fetch_sub(1, SeqCst);
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl<Req: Send + 'static> Service<Req> for Probe {
    type Response = Response<ScriptedBody>;
    type Error = BoxError;
    type Future = Scripted<Req>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.shared.ready_polls.fetch_add(1, SeqCst);
        if self.ready {
            return Poll::Ready(Ok(()));
        }
        let calls = self.shared.calls.load(SeqCst);
        let wait = (self.shared.script.lock().unwrap().ready)(calls);
        match poll_wait(&wait, &mut self.waited, cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(())) => return Poll::Ready(Err(error(Says::Dead))),
            Poll::Ready(Ok(())) => {}
        }
        self.ready = true;
        self.shared.held.fetch_add(1, SeqCst);
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Scripted<Req> {
        let watch = Watch(self.shared.clone());
        if !self.ready {
            watch.fault("an instance was called that had not been polled ready since its last call");
        }
        self.let_go();
        self.waited = 0;
        let call = self.shared.calls.fetch_add(1, SeqCst);
        let (wait, act) = (self.shared.script.lock().unwrap().answer)(call);
        assert_ne!(act, Act::PanicInCall, "as the script says");
        self.shared.running.fetch_add(1, SeqCst);
        Scripted {
            token: self.shared.work.clone(),
            watch,
            request: Some(request),
            call,
            wait,
            act,
            waited: 0,
        }
    }
}

fn poll_wait(wait: &Wait, waited: &mut usize, cx: &mut Context<'_>) -> Poll<Result<(), ()>> {
    match wait {
        Wait::None => Poll::Ready(Ok(())),
        Wait::Polls(polls) if *waited < *polls => {
            *waited += 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
        Wait::Polls(_) => Poll::Ready(Ok(())),
        Wait::Gate(gate) => gate.poll(cx).map(Ok),
        Wait::Panic => panic!("as the script says"),
        Wait::Error => Poll::Ready(Err(())),
    }
}

/// A call of the probe.
pub(crate) struct Scripted<Req> {
    token: Token,
    watch: Watch,
    request: Option<Req>,
    call: usize,
    wait: Wait,
    act: Act,
    waited: usize,
}

// Nothing in it is pinned.
impl<Req> Unpin for Scripted<Req> {}

impl<Req> Future for Scripted<Req> {
    type Output = Result<Response<ScriptedBody>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.watch.0.answer_polls.fetch_add(1, SeqCst);
        if this.request.is_none() {
            this.watch.fault("a call was polled after its end");
            return Poll::Pending;
        }
        if poll_wait(&this.wait, &mut this.waited, cx).is_pending() {
            return Poll::Pending;
        }
        this.request = None;
        let body = (this.watch.0.script.lock().unwrap().body)(this.call);
        Poll::Ready(match this.act {
            Act::Answer(status) => {
                let mut response = Response::new(ScriptedBody {
                    _token: this.token.clone(),
                    wait: body,
                    waited: 0,
                    data: Some(Bytes::from_static(ANSWER)),
                });
                *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
                Ok(response)
            }
            Act::Break => Err(error(Says::Broken)),
            Act::PanicInCall | Act::PanicInPoll => panic!("as the script says"),
        })
    }
}

impl<Req> Drop for Scripted<Req> {
    fn drop(&mut self) {
        self.watch.0.running.fetch_sub(1, SeqCst);
    }
}

/// The body of an answer of the probe: a wait, one frame, a wait, the end.
#[derive(Debug, Default)]
pub(crate) struct ScriptedBody {
    _token: Token,
    wait: Wait,
    waited: usize,
    data: Option<Bytes>,
}

impl Body for ScriptedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if poll_wait(&this.wait, &mut this.waited, cx).is_pending() {
            return Poll::Pending;
        }
        this.waited = 0;
        Poll::Ready(this.data.take().map(|data| Ok(Frame::data(data))))
    }
}

/// Counts how often a task is woken.
#[derive(Debug, Default)]
pub(crate) struct Wakes(AtomicUsize);

impl Wakes {
    pub(crate) fn new() -> (Arc<Wakes>, Waker) {
        let wakes = Arc::new(Wakes::default());
        (wakes.clone(), wakes.into())
    }

    /// Any since they were last taken?
    pub(crate) fn any(&self) -> bool {
        self.0.load(SeqCst) > 0
    }

    /// Since they were last taken.
    pub(crate) fn take(&self) -> usize {
        self.0.swap(0, SeqCst)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}
