//! A circuit breaker around the client of an axum handler.
//!
//! ```text
//! cargo run -- http://127.0.0.1:8080
//! ```
//!
//! It listens on 127.0.0.1:3000 and passes each request on to the service that is named; while that is down it answers
//! 503 by itself.

use axum::{Router, extract::State, http::StatusCode, routing::get};
use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use tower::{ServiceBuilder, ServiceExt, util::BoxCloneSyncService};
use tower_outbound::{
    breaker::{Breaker, CircuitBreakerLayer},
    call::{BoxError, Fault, FaultKind},
    classify::StatusPolicy,
    nest::client::Client,
};

#[derive(Clone)]
struct App {
    upstream: BoxCloneSyncService<Request<Full<Bytes>>, Response<Incoming>, BoxError>,
    address: Uri,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let address: Uri = std::env::args().nth(1).ok_or("name the service to call, as http://host:port")?.parse()?;
    let breaker = CircuitBreakerLayer::new(Breaker::new("upstream")?).classify(StatusPolicy::default());
    let client = ServiceBuilder::new().layer(breaker).service(Client::builder().build_http()?);
    let app = App { upstream: BoxCloneSyncService::new(client), address };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, Router::new().route("/", get(pass_on)).with_state(app)).await?;
    Ok(())
}

async fn pass_on(State(app): State<App>) -> StatusCode {
    let mut request = Request::new(Full::default());
    *request.uri_mut() = app.address;
    match app.upstream.oneshot(request).await {
        Ok(response) => response.status(),
        Err(error) => match Fault::of(&*error).kind() {
            FaultKind::Rejected(_) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_GATEWAY,
        },
    }
}
