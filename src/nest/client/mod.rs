//! A hyper-util client, set up right for a stack of this crate.
//!
//! hyper-util's own client is a good client for one attempt, and a few of its defaults are in the way of saying how
//! often a request was sent. This one differs from it so:
//!
//! | | hyper-util | here | why |
//! | --- | --- | --- | --- |
//! | connect limit | none, or one shared out over addresses | one over resolving, all addresses and TLS | [`ConnectTimedOut`] says what ran out |
//! | hidden resends | on, without a bound | off | an attempt is one sending; the layers above decide |
//! | idle connections | reaped only with a timer, after 90 s | reaped after 4 s | many servers close theirs after 5 s; a request sent into a closing connection is one nobody knows the fate of |
//! | proof of not sent | none | each connection counts what it writes | see below |
//! | TLS name of an endpoint | none | [`build_tls`](ClientBuilder::build_tls) | an address need not be what a certificate is for |
//! | cost of a clone | 304 bytes, several counts | one count | retry layers clone the service below them |
//!
//! # Proof of not sent
//!
//! A request that goes into a pooled connection just as the server closes it fails, and the error looks the same
//! whether the server has read it or not. Each connection here notes when it last took bytes. If that was before
//! the attempt began, nothing of the attempt was written, and the error says [`Sent::No`]: it is a
//! [`FaultError`] around hyper-util's error, and every method may be sent again. All other errors pass unchanged.
//!
//! Over HTTP/2 a server that shuts down says by a GOAWAY which streams it leaves alone. The error of a request does not
//! tell whether its stream is one of them, as hyper gives the error of the connection to a request that it has just sent,
//! too. Each connection here notes when it opened its streams, and when a GOAWAY comes, which was the last one that the
//! server may act on. If that was before the attempt began, the error says [`Sent::No`].
//!
//! A hyper-util client of your own has the same with two lines: [`CountingConnector`] around its connector, and
//! [`NotSentLayer`] around itself. Without them such an error says [`Sent::Maybe`].
//!
//! ```
//! use bytes::Bytes;
//! use http_body_util::Full;
//! use tower_outbound::nest::client::{Client, HttpClient};
//!
//! let client: HttpClient<Full<Bytes>> = Client::builder().build_http()?;
//! # Ok::<(), tower_outbound::call::ConfigError>(())
//! ```
//!
//! [`ConnectTimedOut`]: crate::call::ConnectTimedOut
//! [`Sent::No`]: crate::call::Sent::No
//! [`Sent::Maybe`]: crate::call::Sent::Maybe
//! [`FaultError`]: crate::call::FaultError

mod builder;
mod counting;
mod frames;
mod not_sent;
mod service;
mod tls_names;

pub use self::{
    builder::ClientBuilder,
    counting::{Counting, CountingConnector, CountingConnectorFuture, Writes},
    not_sent::{NotSent, NotSentFuture, NotSentLayer},
    service::{Client, ClientFuture, HttpClient},
};
