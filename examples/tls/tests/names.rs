//! Endpoints that are dialed by their address and verified by a name of their own.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use tls_example::{Seen, certificate, client, server};
use tokio::sync::mpsc::UnboundedReceiver;
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_outbound::{
    balance::{LoadBalanceLayer, RoundRobin},
    call::{BoxError, Endpoint, Endpoints, Fault, FaultKind, HostHeader, Sent, Trail},
    nest::{ServiceBuilderExt, client::Client, client::ClientBuilder},
    retry::Idempotent,
};

fn endpoint(address: SocketAddr, name: &str) -> Endpoint {
    Endpoint::builder(format!("https://{address}"))
        .key(format!("{name}@{address}"))
        .tls_name(name)
        .build()
        .unwrap()
}

fn request(method: &str) -> Request<Full<Bytes>> {
    Request::builder()
        .method(method)
        .uri("http://shop.example/list")
        .body(Full::default())
        .unwrap()
}

fn settings(http2: bool) -> ClientBuilder {
    if http2 {
        Client::builder().http2_only()
    } else {
        Client::builder()
    }
}

async fn send<S, B>(stack: &mut S, method: &str) -> Result<StatusCode, BoxError>
where
    S: Service<Request<Full<Bytes>>, Response = http::Response<B>, Error = BoxError>,
    B: http_body::Body,
{
    let response = stack.ready().await?.call(request(method)).await?;
    let status = response.status();
    let _ = response.into_body().collect().await;
    // Until the connection is back in the pool.
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    Ok(status)
}

fn all(seen: &mut UnboundedReceiver<Seen>) -> Vec<Seen> {
    std::iter::from_fn(|| seen.try_recv().ok()).collect()
}

#[tokio::test]
async fn a_server_is_dialed_by_its_address_verified_by_its_name_and_told_the_host_of_choice() {
    let (config, trust) = certificate(&["orders.example"]);
    let (address, mut seen, _running) = server("orders", config).await.unwrap();
    for (http2, header, host) in [
        (false, HostHeader::OfEndpoint, address.to_string()),
        (false, HostHeader::OfRequest, "shop.example".to_owned()),
        (true, HostHeader::OfEndpoint, address.to_string()),
    ] {
        let endpoints: Endpoints = [endpoint(address, "orders.example")].into_iter().collect();
        let mut stack = ServiceBuilder::new()
            .layer(LoadBalanceLayer::new(endpoints).host_header(header))
            .service(client(settings(http2), trust.clone()).unwrap());
        assert_eq!(send(&mut stack, "GET").await.unwrap(), StatusCode::OK);
        let seen = all(&mut seen);
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].tls_name.as_deref(), Some("orders.example"));
        assert_eq!(seen[0].host, host, "{http2} {header:?}");
    }
}

#[tokio::test]
async fn a_server_with_a_certificate_for_another_name_gets_nothing_and_a_post_goes_to_the_next() {
    let (wrong, _) = certificate(&["invoices.example"]);
    let (right, trust) = certificate(&["orders.example"]);
    let (stranger, mut seen_by_stranger, _running) = server("stranger", wrong).await.unwrap();
    let (good, mut seen, _running_as_well) = server("orders", right).await.unwrap();
    let named = |address| endpoint(address, "orders.example");
    let stack = |endpoints: Vec<Endpoint>| {
        ServiceBuilder::new()
            .idempotent_retry(Idempotent::default())
            .load_balance(endpoints.into_iter().collect())
            .service(client(settings(false), trust.clone()).unwrap())
    };
    let mut both = stack(vec![named(stranger), named(good)]);
    assert_eq!(send(&mut both, "POST").await.unwrap(), StatusCode::OK);
    assert_eq!((all(&mut seen_by_stranger).len(), all(&mut seen).len()), (0, 1));

    let error = send(&mut stack(vec![named(stranger)]), "POST").await.unwrap_err();
    assert_eq!(Fault::of(&*error), Fault::new(FaultKind::Connect, Sent::No));
    assert!(Trail::of(&*error).is_some());
}

#[tokio::test]
async fn two_names_at_one_address_never_share_a_connection_and_each_keeps_its_own() {
    for http2 in [false, true] {
        let (config, trust) = certificate(&["a.example", "b.example", "127.0.0.1"]);
        let (address, mut seen, _running) = server("both", config).await.unwrap();
        let plain = Endpoint::new(format!("https://{address}")).unwrap();
        let endpoints = [
            endpoint(address, "a.example"),
            endpoint(address, "b.example"),
            plain,
        ];
        let mut stack = ServiceBuilder::new()
            .layer(LoadBalanceLayer::new(endpoints.into_iter().collect()).rule(RoundRobin::new()))
            .service(client(settings(http2), trust).unwrap());
        for _ in 0..9 {
            send(&mut stack, "GET").await.unwrap();
        }
        let seen = all(&mut seen);
        // In turn, and from the second round on into the connection of the first.
        let names: Vec<_> = seen.iter().map(|seen| seen.tls_name.as_deref()).collect();
        assert_eq!(
            names,
            [Some("a.example"), Some("b.example"), None].repeat(3),
            "{http2}"
        );
        let connections: Vec<_> = seen.iter().map(|seen| seen.connection).collect();
        assert_eq!(connections, [0, 1, 2].repeat(3), "{http2}");
    }
}

#[tokio::test]
async fn calls_at_once_to_two_names_at_one_address_each_see_their_own() {
    const EACH: usize = 50;
    let (config, trust) = certificate(&["a.example", "b.example"]);
    let (address, mut seen, _running) = server("both", config).await.unwrap();
    let client = client(settings(false).most_idle_per_host(8), trust).unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..2 * EACH {
        let name = ["a.example", "b.example"][n % 2];
        let endpoints: Endpoints = [endpoint(address, name)].into_iter().collect();
        let stack = ServiceBuilder::new()
            .load_balance(endpoints)
            .service(client.clone());
        calls.spawn(async move { stack.oneshot(request("GET")).await.unwrap().status() });
    }
    assert!(
        calls
            .join_all()
            .await
            .iter()
            .all(|status| *status == StatusCode::OK)
    );
    let seen = all(&mut seen);
    let of = |name| {
        seen.iter()
            .filter(move |seen| seen.tls_name.as_deref() == Some(name))
    };
    assert_eq!((of("a.example").count(), of("b.example").count()), (EACH, EACH));
    assert!(of("a.example").all(|a| of("b.example").all(|b| a.connection != b.connection)));
}

#[tokio::test]
async fn a_client_that_cannot_verify_by_name_refuses_and_sends_nothing() {
    let endpoint = endpoint(([127, 0, 0, 1], 1).into(), "orders.example");
    let client = Client::builder().build_http::<Full<Bytes>>().unwrap();
    let mut stack = ServiceBuilder::new()
        .load_balance([endpoint].into_iter().collect())
        .service(client);
    let error = send(&mut stack, "GET").await.unwrap_err();
    assert_eq!(Fault::of(&*error), Fault::new(FaultKind::Connect, Sent::No));
    assert!(error.to_string().contains("build_tls"), "{error}");
}

#[test]
fn a_connector_that_cannot_be_made_is_found_when_the_client_is_built() {
    let none = |_: Option<&str>| -> Result<hyper_util::client::legacy::connect::HttpConnector, BoxError> {
        Err("no roots".into())
    };
    let error = Client::builder().build_tls::<_, Full<Bytes>>(none).unwrap_err();
    assert_eq!(
        (error.field(), error.value()),
        ("connector", "no connector: no roots")
    );
}
