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
use http::{Request, Uri};
use http_body_util::Full;
use tower::{Layer, ServiceExt};
use tower_outbound::{
    breaker::{Breaker, CircuitBreaker, CircuitBreakerLayer},
    call::{BoxError, Fault, FaultKind},
    classify::StatusPolicy,
    nest::client::{Client, HttpClient},
};

#[derive(Clone)]
struct App {
    upstream: CircuitBreaker<HttpClient<Full<Bytes>>, StatusPolicy>,
    address: Uri,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let address: Uri = std::env::args().nth(1).ok_or("name the service to call, as http://host:port")?.parse()?;
    let breaker = CircuitBreakerLayer::new(Breaker::new("upstream")?).classify(StatusPolicy::default());
    let app = App { upstream: breaker.layer(Client::builder().build_http()?), address };
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
