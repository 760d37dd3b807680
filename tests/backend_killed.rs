//! Servers that are processes of their own, killed under load and started again on the same port.
//!
//! 64 GETs are in flight all the time, and a few POSTs beside them. What is counted is printed with `--nocapture`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(clippy::print_stdout, reason = "the counts are for reading, too")]
#![allow(
    clippy::disallowed_methods,
    reason = "the thread that kills and waits drives no future, and its time is that of other processes"
)]

use std::{
    collections::HashMap,
    convert::Infallible,
    env, fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::SocketAddr,
    process::{self, Child, Command, Stdio},
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::TcpSocket,
    runtime::Runtime,
    task::JoinHandle,
    time::{Instant, sleep},
};
use tower::{ServiceBuilder, ServiceExt, util::BoxCloneSyncService};
use tower_outbound::{
    balance::{Ewma, LoadBalanceLayer, RoundRobin, Rule},
    call::{BoxError, Endpoint, Endpoints, NotRetried, RetryBudget, Trail},
    collect::{CollectBodyLayer, CollectedBody},
    nest::client::Client,
    retry::{Idempotent, IdempotentRetryLayer},
    timeout::{ReadBody, ReadTimeoutLayer},
};

const SERVERS: usize = 3;
const GETS: usize = 64;
const POSTS: usize = 8;
/// How long a server works on a request.
const WORK: Duration = Duration::from_millis(20);
/// How long a server stays dead at least.
const DEAD: Duration = Duration::from_millis(300);
/// No condition is waited for longer than this.
const PATIENCE: Duration = Duration::from_secs(60);
/// Tells the process that it is a server: how it speaks, where, and what it calls itself.
const ROLE: &str = "OUTBOUND_TEST_BACKEND";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// What is told to a server on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Role {
    protocol: Protocol,
    address: SocketAddr,
    life: u64,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} {}", self.protocol, self.address, self.life)
    }
}

impl FromStr for Role {
    type Err = BoxError;

    fn from_str(role: &str) -> Result<Role, BoxError> {
        let mut words = role.split(' ');
        let mut word = || words.next().ok_or("a word is missing");
        Ok(Role {
            protocol: if word()? == "Http2" {
                Protocol::Http2
            } else {
                Protocol::Http1
            },
            address: word()?.parse()?,
            life: word()?.parse()?,
        })
    }
}

/// Not a test: this program again, as a server.
#[test]
#[ignore = "the tests here start it, as a process of its own"]
fn a_server() {
    let Ok(role) = env::var(ROLE) else {
        return;
    };
    // It ends with the process that has started it.
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        process::exit(0);
    });
    runtime().block_on(serve(role.parse().unwrap())).unwrap();
}

/// Standard output belongs to the test runner; what is told is told on the other one, a line at a time.
fn tell(line: &str) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

async fn serve(role: Role) -> io::Result<()> {
    let listener = socket(role.address)?.listen(1024)?;
    tell("ready");
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (stream, life) = (TokioIo::new(stream), role.life);
        let service = service_fn(move |request| answer(life, request));
        tokio::spawn(async move {
            match role.protocol {
                Protocol::Http1 => {
                    conn::http1::Builder::new()
                        .serve_connection(stream, service)
                        .await
                }
                Protocol::Http2 => {
                    conn::http2::Builder::new(TokioExecutor::new())
                        .serve_connection(stream, service)
                        .await
                }
            }
        });
    }
}

/// A POST is carried out when its number has been told.
async fn answer(life: u64, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.method() == Method::POST {
        tell(&format!("post {}", request.uri().path().trim_start_matches('/')));
    }
    sleep(WORK).await;
    Ok(Response::builder()
        .header("x-life", life)
        .body(Full::from("done"))
        .unwrap())
}

fn socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// A place where a server lives, again and again.
struct Server {
    protocol: Protocol,
    address: SocketAddr,
    lives: Arc<AtomicU64>,
    life: u64,
    child: Option<Child>,
    posts: mpsc::Sender<u64>,
    /// Keeps the port while nobody listens: it refuses, and no other process gets it. Systems other than Linux let nobody
    /// else listen then.
    _port: Option<TcpSocket>,
}

impl Server {
    fn start(protocol: Protocol, lives: Arc<AtomicU64>, posts: mpsc::Sender<u64>) -> Server {
        let port = socket(([127, 0, 0, 1], 0).into()).unwrap();
        let mut server = Server {
            protocol,
            address: port.local_addr().unwrap(),
            lives,
            life: 0,
            child: None,
            posts,
            _port: Some(port).filter(|_| cfg!(target_os = "linux")),
        };
        server.revive();
        server
    }

    /// It listens when this returns.
    fn revive(&mut self) {
        self.life = self.lives.fetch_add(1, Relaxed);
        let role = Role {
            protocol: self.protocol,
            address: self.address,
            life: self.life,
        };
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "a_server", "--ignored", "--nocapture"])
            .env(ROLE, role.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = BufReader::new(child.stderr.take().unwrap());
        self.child = Some(child);
        let mut line = String::new();
        told.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let posts = self.posts.clone();
        thread::spawn(move || {
            for line in told.lines().map_while(Result::ok) {
                match line.strip_prefix("post ").map(str::parse) {
                    Some(Ok(post)) => posts.send(post).unwrap(),
                    _ => println!("a server says: {line}"),
                }
            }
        });
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn key(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

type Answer = Response<CollectedBody<ReadBody<Incoming>>>;
type Stack = BoxCloneSyncService<Request<Full<Bytes>>, Answer, BoxError>;

/// What callers have seen.
#[derive(Default)]
struct Seen {
    stop: AtomicBool,
    gets: AtomicU64,
    /// Of each life of a server.
    answers: [AtomicU64; 16],
}

/// Calls without end, from so many callers.
struct Load {
    runtime: Runtime,
    seen: Arc<Seen>,
    gets: Vec<JoinHandle<Vec<BoxError>>>,
    posts: Vec<JoinHandle<Vec<(u64, bool)>>>,
}

impl Load {
    fn start(runtime: Runtime, stack: &Stack) -> Load {
        let seen = Arc::<Seen>::default();
        let gets = (0..GETS).map(|_| runtime.spawn(get(stack.clone(), seen.clone())));
        let gets = gets.collect();
        let posts = (0..POSTS as u64).map(|caller| runtime.spawn(post(caller, stack.clone(), seen.clone())));
        let posts = posts.collect();
        Load {
            runtime,
            seen,
            gets,
            posts,
        }
    }

    /// The errors of GETs, and for each POST whether it was answered.
    fn stop(self) -> (Vec<BoxError>, HashMap<u64, bool>) {
        self.seen.stop.store(true, Relaxed);
        self.runtime.block_on(async {
            let (mut errors, mut posts) = (Vec::new(), HashMap::new());
            for caller in self.gets {
                errors.extend(caller.await.unwrap());
            }
            for caller in self.posts {
                posts.extend(caller.await.unwrap());
            }
            (errors, posts)
        })
    }
}

/// Which life of a server it was that has answered.
async fn call(stack: &Stack, method: Method, path: u64) -> Result<usize, BoxError> {
    let request = Request::builder()
        .method(method)
        .uri(format!("/{path}"))
        .body(Full::default())?;
    let response = stack.clone().oneshot(request).await?;
    let life = response.headers()["x-life"].to_str()?.parse()?;
    response.into_body().collect().await?;
    Ok(life)
}

async fn get(stack: Stack, seen: Arc<Seen>) -> Vec<BoxError> {
    let mut errors = Vec::new();
    while !seen.stop.load(Relaxed) {
        match call(&stack, Method::GET, 0).await {
            Ok(life) => _ = seen.answers[life].fetch_add(1, Relaxed),
            Err(error) => errors.push(error),
        }
        seen.gets.fetch_add(1, Relaxed);
    }
    errors
}

async fn post(caller: u64, stack: Stack, seen: Arc<Seen>) -> Vec<(u64, bool)> {
    let mut posts = Vec::new();
    while !seen.stop.load(Relaxed) {
        let number = posts.len() as u64 * POSTS as u64 + caller;
        posts.push((number, call(&stack, Method::POST, number).await.is_ok()));
    }
    posts
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
    began.elapsed()
}

/// What has come of a run.
struct Outcome {
    calls: u64,
    errors: Vec<BoxError>,
    retries: u64,
    refused: u64,
    took: Duration,
}

/// Kills each server once. If they come back soon, each is waited for before the next one dies.
fn kill_each_in_turn<R: Rule + Send + Sync + 'static>(
    protocol: Protocol,
    rule: R,
    come_back_soon: bool,
) -> Outcome {
    let began = Instant::now();
    let lives = Arc::<AtomicU64>::default();
    let (told, executed) = mpsc::channel();
    let runtime = runtime();
    let entered = runtime.enter();
    let mut servers: Vec<_> = (0..SERVERS)
        .map(|_| Server::start(protocol, lives.clone(), told.clone()))
        .collect();
    drop((told, entered));

    let endpoints: Endpoints = servers
        .iter()
        .map(|server| Endpoint::new(server.key()).unwrap())
        .collect();
    let budget = RetryBudget::default();
    let balance = LoadBalanceLayer::new(endpoints).rule(rule);
    let figures = balance.handle();
    let retry = IdempotentRetryLayer::new(Idempotent::default().next_endpoint(1)).budget(budget.clone());
    let client = Client::builder();
    let client = match protocol {
        Protocol::Http1 => client,
        Protocol::Http2 => client.http2_only(),
    };
    let stack = ServiceBuilder::new()
        .layer(retry)
        .layer(balance)
        // A server can be killed between the head of its answer and the body: to be whole is a part of the attempt.
        .layer(CollectBodyLayer::new())
        .layer(ReadTimeoutLayer::new(Duration::from_secs(5)).unwrap())
        .service(client.build_http().unwrap());
    let load = Load::start(runtime, &Stack::new(stack));
    let seen = load.seen.clone();
    let answered = |life: u64| seen.answers[life as usize].load(Relaxed);

    wait_until("all answer", || {
        servers.iter().all(|server| answered(server.life) >= 500)
    });
    for victim in &mut servers {
        let key = victim.key();
        let in_flight = || figures.endpoint(&key).unwrap().in_flight();
        // A tenth of what is called in a second can be saved up: more than can be lost at once.
        wait_until(
            "it has many calls in flight, and there is a retry for each",
            || in_flight() >= GETS as u64 / 4 && budget.available() >= (GETS + POSTS) as u64,
        );
        let lost = in_flight();
        victim.kill();
        let killed = Instant::now();
        let calls = seen.gets.load(Relaxed);
        wait_until("calls go on", || {
            killed.elapsed() >= DEAD && seen.gets.load(Relaxed) >= calls + 500
        });
        victim.revive();
        let back = come_back_soon.then(|| {
            wait_until("it is called again", || answered(victim.life) > 0);
            killed.elapsed()
        });
        println!(
            "{protocol:?}: killed with about {lost} in flight, {} retries so far, {} refused, {} left; it answers again after \
             {back:?}",
            budget.granted(),
            budget.refused(),
            budget.available(),
        );
    }
    // Somebody had to answer while the last one was dead.
    wait_until("one that was killed before is called again", || {
        servers[..SERVERS - 1]
            .iter()
            .any(|server| answered(server.life) > 0)
    });
    let (errors, posts) = load.stop();
    let gets = seen.gets.load(Relaxed);
    drop(servers);

    let mut counts: HashMap<u64, u32> = HashMap::new();
    for post in executed {
        *counts.entry(post).or_default() += 1;
    }
    let answered = posts.values().filter(|answered| **answered).count();
    println!(
        "{protocol:?}: {gets} GETs, {} failed; {} POSTs, {} failed; {} retries, {} refused by the budget; {:?}",
        errors.len(),
        posts.len(),
        posts.len() - answered,
        budget.granted(),
        budget.refused(),
        began.elapsed(),
    );
    for (post, answered) in &posts {
        let times = counts.get(post).copied().unwrap_or_default();
        assert!(times <= 1, "POST {post} was carried out {times} times");
        assert!(!answered || times == 1, "POST {post} was answered by nobody");
    }
    Outcome {
        calls: gets + posts.len() as u64,
        errors,
        retries: budget.granted(),
        refused: budget.refused(),
        took: began.elapsed(),
    }
}

fn nobody_sees(outcome: &Outcome) {
    if let Some(error) = outcome.errors.first() {
        panic!("{} GETs failed: {error}", outcome.errors.len());
    }
    assert!(outcome.retries > 0 && outcome.refused == 0);
}

#[test]
fn no_get_fails_while_each_of_three_servers_is_killed_in_turn() {
    nobody_sees(&kill_each_in_turn(Protocol::Http1, Ewma::new(), false));
}

#[test]
fn no_get_fails_while_each_of_three_servers_is_killed_in_turn_over_http2() {
    nobody_sees(&kill_each_in_turn(Protocol::Http2, Ewma::new(), false));
}

#[test]
fn a_server_that_was_killed_is_called_again_after_its_start() {
    let rule = Ewma::builder()
        .recovery(Duration::from_millis(500))
        .build()
        .unwrap();
    nobody_sees(&kill_each_in_turn(Protocol::Http1, rule, true));
}

/// A rule that does not look goes on to send a third of the calls to the dead one, and there are retries for a tenth.
#[test]
fn by_turns_gets_fail_only_where_the_budget_refuses_a_retry() {
    let outcome = kill_each_in_turn(Protocol::Http1, RoundRobin::new(), true);
    for error in &outcome.errors {
        let mut stops = Trail::of(&**error).unwrap().stops();
        assert!(
            stops.any(|stop| stop.reason() == NotRetried::BudgetSpent),
            "{error}"
        );
    }
    assert!(outcome.errors.len() as u64 <= outcome.refused);
    let most = 10 + outcome.calls / 10 + outcome.took.as_secs() + 1;
    assert!(
        (1..=most).contains(&outcome.retries),
        "{} of {most}",
        outcome.retries
    );
}
