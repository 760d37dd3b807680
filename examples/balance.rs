//! A balancer over four small servers on loopback, and what it says about each of them while calls go on.
//!
//! ```text
//! cargo run --example balance --all-features
//! ```
//!
//! Two servers are quick, one is slow, and one answers 503 at once. The balancer finds out by itself. Then a fifth one
//! comes, and one of the quick ones is taken out of service.

#![allow(clippy::print_stdout, reason = "a program that prints")]

#[path = "support/backends.rs"]
mod backends;

use std::time::Duration;

use backends::{Backend, Manner};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use tokio::{task::JoinSet, time::sleep};
use tower::{Layer, ServiceExt};
use tower_outbound::{
    balance::{BalanceHandle, Drained, Ewma, LoadBalance, LoadBalanceLayer, OutlierEjection},
    call::{BoxError, ConfigError, Endpoint, Endpoints},
    classify::StatusPolicy,
    nest::client::{Client, HttpClient},
};

type Stack = LoadBalance<HttpClient<Full<Bytes>>, Ewma, StatusPolicy>;

const QUICK: Manner = Manner::Sleeps(Duration::from_millis(5));
const SLOW: Manner = Manner::Sleeps(Duration::from_millis(100));

/// A server, by a name of ours: without one the key would be the address.
fn endpoint(server: &Backend) -> Result<Endpoint, ConfigError> {
    Endpoint::builder(server.uri()).key(server.name()).build()
}

/// One call after the other, until one has no answer.
async fn call_on_and_on(stack: Stack) -> BoxError {
    loop {
        if let Err(error) = call(&stack).await {
            return error;
        }
    }
}

async fn call(stack: &Stack) -> Result<(), BoxError> {
    let request = Request::get("/orders/7").body(Full::default())?;
    let response = stack.clone().oneshot(request).await?;
    // To its end, so that the connection can be used again.
    response.into_body().collect().await?;
    Ok(())
}

fn show(title: &str, handle: &BalanceHandle) {
    println!("\n{title}");
    for one in handle.endpoints() {
        println!("  {:<9} {one}", one.endpoint().key());
    }
    println!("  {:<9} {}", "together", handle.total());
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let servers = [
        Backend::start("quick", QUICK).await?,
        Backend::start("quick too", QUICK).await?,
        Backend::start("slow", SLOW).await?,
        Backend::start("failing", Manner::Answers(503)).await?,
    ];
    let endpoints: Endpoints = servers.iter().map(endpoint).collect::<Result<_, _>>()?;

    // Without the statuses, a server that answers 503 at once would be the best of all.
    let layer = LoadBalanceLayer::new(endpoints.clone())
        .classify(StatusPolicy::default())
        .outliers(OutlierEjection::default());
    let handle = layer.handle();
    let stack = layer.layer(Client::builder().build_http()?);

    let mut callers = JoinSet::new();
    for _ in 0..16 {
        callers.spawn(call_on_and_on(stack.clone()));
    }
    sleep(Duration::from_secs(1)).await;
    show("16 callers, after a second:", &handle);

    let newcomer = Backend::start("newcomer", QUICK).await?;
    endpoints.insert(endpoint(&newcomer)?);
    // It gets little at first, as it may be cold.
    sleep(Duration::from_secs(4)).await;
    show("four seconds after another server has come:", &handle);

    // For a deployment. It returns when the last call there has its answer.
    let drained = handle.drain("quick", Duration::from_secs(10)).await;
    if drained != Drained::Empty {
        return Err(format!("a server that answers in 5 ms was not drained: {drained:?}").into());
    }
    let received = servers[0].received();
    sleep(Duration::from_millis(500)).await;
    show("half a second after one of the quick ones has gone:", &handle);
    println!("\nit was sent {} calls since", servers[0].received() - received);

    // They are ended when they are dropped. One that has ended before had an error.
    match callers.try_join_next() {
        Some(error) => Err(error?),
        None => Ok(()),
    }
}
