//! Two servers that are reached by their address and verified by the name of the service: `cargo run`.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use tls_example::{certificate, client, server};
use tower_outbound::{
    Nest,
    call::{BoxError, Endpoint},
    nest::client::Client,
};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // The certificate is for the service, wherever its servers run.
    let (config, trust) = certificate(&["orders.example"]);
    let (first, _, _running) = server("first", config.clone()).await?;
    let (second, _, _running_as_well) = server("second", config).await?;

    let endpoints = [first, second].map(|address| {
        Endpoint::builder(format!("https://{address}"))
            .tls_name("orders.example")
            .build()
    });
    let endpoints = endpoints.into_iter().collect::<Result<_, _>>()?;
    let nest = Nest::builder("orders", endpoints).build(client(Client::builder(), trust)?)?;

    for n in 0..4 {
        let request = Request::get(format!("/orders/{n}")).body(Full::<Bytes>::default())?;
        let answer = nest.send(request).await?.into_body().collect().await?.to_bytes();
        println!("/orders/{n}: {}", String::from_utf8_lossy(&answer));
    }
    Ok(())
}
