//! Balancing over ready-made services, one an endpoint.
//!
//! [`BalanceServices`] picks one of a [live set](Services) of services, each with the endpoint that it goes to: connections
//! of hyper's, channels of tonic's, a stack of layers for each server. It is what `tower::balance` is, and picks, books
//! and tells what [`LoadBalance`](super::LoadBalance) does: its rules, figures, handle, vetoes, trail and errors are the
//! same, and so is what a retry layer above can wish for. (Which of the two to take: [here](super#two-forms).)
//!
//! ```
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_outbound::balance::BalanceServices;
//! use tower_outbound::call::{BoxError, Endpoint, Services};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! // In their places: `tonic::transport::Channel`, or what your pool of connections hands out.
//! let connection = |to: &'static str| {
//!     service_fn(move |_: http::Request<String>| async move { Ok::<_, BoxError>(http::Response::new(to)) })
//! };
//! let orders = Services::new();
//! orders.insert(Endpoint::new("http://10.0.0.1:8080")?, connection("first"));
//! orders.insert(Endpoint::new("http://10.0.0.2:8080")?, connection("second"));
//!
//! let balance = BalanceServices::new(orders.clone());
//! let figures = balance.handle();
//! let request = http::Request::get("/orders/17").body(String::new())?;
//! balance.clone().oneshot(request.clone()).await?;
//!
//! // Taken out: it is called no more. Calls that are under way end.
//! orders.remove("http://10.0.0.1:8080");
//! assert_eq!(*balance.oneshot(request).await?.body(), "second");
//! assert_eq!(figures.endpoints().len(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! It is `Clone`, and needs no `Buffer` around it. Services that another part of the program finds come in as a stream, which
//! is what tower's `Discover` is: see [`Services::from_stream`].
//!
//! A service that cannot come back, as the `SendRequest` of a connection of hyper's, is to be replaced when it has ended, by
//! [`insert`](Services::insert) under the same key: until then it is asked again, and fails. What was found of the endpoint,
//! an [ejection](super::outlier) for instance, stays; it goes with [`remove`](Services::remove). Over HTTP/2:
//!
//! ```
//! # #[cfg(all(feature = "client", feature = "http2"))]
//! # mod connections {
//! use std::{pin::Pin, task::{Context, Poll}, time::Duration};
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use hyper::{body::Incoming, client::conn::http2::{SendRequest, handshake}};
//! use hyper_util::rt::{TokioExecutor, TokioIo};
//! use tokio::{net::TcpStream, time::sleep};
//! use tower::Service;
//! use tower_outbound::balance::{BalanceServices, WhenEmpty};
//! use tower_outbound::call::{BoxError, ConfigError, Endpoint, HostHeader, Services};
//!
//! /// All clones are one connection.
//! #[derive(Clone)]
//! pub struct Connection(SendRequest<Full<Bytes>>);
//!
//! impl Service<Request<Full<Bytes>>> for Connection {
//!     type Response = Response<Incoming>;
//!     type Error = hyper::Error;
//!     type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;
//!
//!     fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
//!         self.0.poll_ready(cx)
//!     }
//!
//!     fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
//!         Box::pin(self.0.send_request(request))
//!     }
//! }
//!
//! /// For a task of each server: connects, and connects again a second after the connection has ended.
//! pub async fn stay_connected(orders: Services<Connection>, to: Endpoint) {
//!     loop {
//!         if let Err(error) = connect(&orders, &to).await {
//!             eprintln!("{to}: {error}");
//!         }
//!         sleep(Duration::from_secs(1)).await;
//!     }
//! }
//!
//! async fn connect(orders: &Services<Connection>, to: &Endpoint) -> Result<(), BoxError> {
//!     let socket = TcpStream::connect(to.authority().as_str()).await?;
//!     let (requests, connection) = handshake(TokioExecutor::new(), TokioIo::new(socket)).await?;
//!     orders.insert(to.clone(), Connection(requests));
//!     Ok(connection.await?)
//! }
//!
//! /// The set is empty until the first is connected. HTTP/2 wants the address of the server in each request.
//! pub fn balance(orders: Services<Connection>) -> Result<BalanceServices<Connection>, ConfigError> {
//!     let balance = BalanceServices::new(orders).write_address(HostHeader::OfEndpoint);
//!     balance.when_empty(WhenEmpty::Wait(Duration::from_secs(5)))
//! }
//! # }
//! # #[cfg(all(feature = "client", feature = "http2"))]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_outbound::call::BoxError> {
//! #     use hyper_util::rt::{TokioExecutor, TokioIo};
//! #     use tower::ServiceExt;
//! #     let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! #     let address = listener.local_addr()?;
//! #     tokio::spawn(async move {
//! #         loop {
//! #             let (socket, _) = listener.accept().await.unwrap();
//! #             let answer = hyper::service::service_fn(async |request: http::Request<hyper::body::Incoming>| {
//! #                 Ok::<_, std::convert::Infallible>(http::Response::new(request.uri().to_string()))
//! #             });
//! #             let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
//! #             tokio::spawn(http.serve_connection(TokioIo::new(socket), answer));
//! #         }
//! #     });
//! #     let orders = tower_outbound::call::Services::new();
//! #     let endpoint = format!("http://{address}").parse()?;
//! #     tokio::spawn(connections::stay_connected(orders.clone(), endpoint));
//! #     let request = http::Request::get("/orders/17").body(Default::default())?;
//! #     let response = connections::balance(orders)?.oneshot(request).await?;
//! #     let body = http_body_util::BodyExt::collect(response.into_body()).await?.to_bytes();
//! #     assert_eq!(body, format!("http://{address}/orders/17"));
//! #     Ok(())
//! # }
//! # #[cfg(not(all(feature = "client", feature = "http2")))]
//! # fn main() {}
//! ```
//!
//! Coming from `tower::balance`:
//!
//! | there | here |
//! | --- | --- |
//! | `PeakEwmaDiscover`, `PendingRequestsDiscover` around the `Discover` | nothing: the balancer measures |
//! | `Balance` in a `Buffer` | `BalanceServices::new(Services::from_stream(discover, describe))` |
//! | waits for ever where none is ready | 1 s, then `NotReady`: [`ready_wait`](BalanceServices::ready_wait) |
//! | requests of any type | [`any_request`](BalanceServices::any_request) |
//!
//! # Which service is called
//!
//! Each attempt picks an endpoint, makes a clone of its service, asks that clone for readiness, and calls it: all in the first
//! poll of the future, when the service is ready at once. The services in the set are never polled, so nothing holds what
//! readiness holds, and an attempt goes to the set as it is then.
//!
//! | the service | what happens |
//! | --- | --- |
//! | is ready | it is called |
//! | is not ready | another one is picked at once. The clone is kept, and so is its place in the line: the first that is ready is called, and the others are dropped |
//! | fails to become ready | this is booked as a connection failure of the endpoint, and as an attempt that was [not sent](crate::call::Sent::No), and another one is picked at once. That is no retry: it takes no budget, and is right for a POST |
//! | was taken out, or replaced, before it was ready | another one is picked at once |
//!
//! One that was not ready is kept, and asked again: with a fresh clone, by the first call after a while whose rule wants it.
//! Until then it has a [veto](crate::call::Veto::NotReady), so that a rule leaves it out as it does all with a veto. That
//! while is 1 ms and up to 64 ms for one that was busy, and 100 ms and up to 3.2 s for one that failed; it doubles each time,
//! and ends when a call that waits for the service finds it ready, or when it is replaced. If all have a veto all are
//! asked.
//!
//! What is waited for readiness counts for no endpoint: an attempt is in flight from the call of the service on.
//!
//! One look asks sixteen services at most, and a call waits for sixteen at most; where there are more, it looks again when
//! the next one has rested.
//!
//! # When none is ready
//!
//! | the set | what happens | default |
//! | --- | --- | --- |
//! | is empty, or the rule chooses none of it | [`when_empty`](BalanceServices::when_empty) | fails at once: [`NoEndpoint`](crate::call::NoEndpoint) |
//! | has never been published by its source | waits up to [`first_wait`](BalanceServices::first_wait) | 1 s, then `NoEndpoint` |
//! | has services that are busy | waits up to [`ready_wait`](BalanceServices::ready_wait) | 1 s, then [`NotReady`](crate::call::NotReady) |
//! | has services, and all have failed | `when_empty` | fails at once: `NotReady`, with the last failure as a source |
//!
//! `NotReady` says how many were busy and how many have failed, and proves that nothing was sent, so that a retry layer may
//! send any request again. [`NotReady::of`](crate::call::NotReady::of) finds it in an error. No wait is longer than the time
//! that the call has left.
//!
//! [`poll_ready`](tower::Service::poll_ready) is ready at all times, since which service is asked depends on the request. A
//! limit on how many calls wait belongs above: a [`Bulkhead`](crate::bulkhead), for instance.
//!
//! # Requests
//!
//! A request is sent as it is. A rule sees the head of an `http::Request`, or of a type of your own that is
//! [`Addressed`](crate::call::Addressed); other types are taken after [`any_request`](BalanceServices::any_request). What needs
//! the address of the server in the request gets it with [`write_address`](BalanceServices::write_address).
//!
//! # Defaults
//!
//! | setting | default | |
//! | --- | --- | --- |
//! | [`rule`](BalanceServices::rule) | [`Ewma`](super::Ewma) | |
//! | [`classify`](BalanceServices::classify) | [`ByFault`](crate::call::ByFault) | |
//! | [`outliers`](BalanceServices::outliers) | none is ejected | |
//! | [`when_empty`](BalanceServices::when_empty) | [`FailAtOnce`](super::WhenEmpty::FailAtOnce) | tower's balancer waits for ever |
//! | [`first_wait`](BalanceServices::first_wait) | 1 s | |
//! | [`ready_wait`](BalanceServices::ready_wait) | 1 s | tower's balancer waits for ever |
//! | [`write_address`](BalanceServices::write_address) | requests stay as they are | |

mod future;
mod search;
mod service;
mod view;

#[cfg(doc)]
use crate::call::Services;

pub use self::{
    future::BalanceServicesFuture,
    service::BalanceServices,
    view::{AnyRequest, ByHead, RequestView},
};
