//! Writing an endpoint into a request.

use std::sync::Arc;

use http::{
    Extensions, HeaderMap, HeaderValue, Method, Request, Uri,
    header::HOST,
    uri::{Authority, PathAndQuery},
};

use super::Endpoint;
use crate::call::{IDEMPOTENCY_KEY, Semantics};

/// Which `Host` header a request to an endpoint carries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostHeader {
    /// The endpoint's, as Ribbon does: a `Host` in the request is taken out, so that the client writes it from the
    /// address.
    #[default]
    OfEndpoint,
    /// The one that the caller gave, be it as a header or in the address.
    ///
    /// It is a header in HTTP/2 as well: there hyper's client writes the endpoint's address into `:authority` whatever
    /// the request says, and a server may mind that the two differ (RFC 9113, section 8.3.1).
    OfRequest,
}

/// The name by which the server that a request goes to is to be verified, if it is not the host in its address.
///
/// It stands in the extensions of a request to an endpoint with a [TLS name](super::EndpointBuilder::tls_name), for the
/// client to read. A client has to keep connections apart that were verified by different names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TlsName(Arc<str>);

impl TlsName {
    pub(super) fn new(name: &str) -> Self {
        TlsName(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What requests that belong together have in common: a user, a session, a shard. Rules that keep such requests on one
/// endpoint go by it, as the balancer's `ConsistentHash` does.
///
/// Of an `http::Request` it is what stands in the extensions:
///
/// ```
/// use tower_outbound::call::{Addressed, Affinity};
///
/// let request = http::Request::get("/cart").extension(Affinity::of("user-17")).body(())?;
/// assert_eq!(request.affinity(), Some(Affinity::of("user-17")));
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Affinity(u64);

impl Affinity {
    /// Of requests that have these bytes in common. It is the same in all processes and versions.
    pub fn of(key: impl AsRef<[u8]>) -> Self {
        // FNV-1a, and the last step of SplitMix64, since FNV hardly spreads the last bytes.
        let fnv = key
            .as_ref()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        Affinity(fnv).with(0)
    }

    /// Another one, that this and a number determine.
    pub fn with(self, number: u64) -> Self {
        let mut hash = (self.0 ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Affinity(hash ^ (hash >> 31))
    }

    /// As a number. All are as likely as one another.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// The head of a request, before an endpoint is written into it.
#[derive(Debug, Clone, Copy)]
pub struct RequestHead<'a> {
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
}

impl<'a> RequestHead<'a> {
    /// Of a request whose parts these are.
    pub fn new(method: &'a Method, uri: &'a Uri, headers: &'a HeaderMap, extensions: &'a Extensions) -> Self {
        RequestHead {
            method,
            uri,
            headers,
            extensions,
        }
    }

    /// The method.
    pub fn method(&self) -> &'a Method {
        self.method
    }

    /// The address, as the caller has written it.
    pub fn uri(&self) -> &'a Uri {
        self.uri
    }

    /// The headers.
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// The extensions.
    pub fn extensions(&self) -> &'a Extensions {
        self.extensions
    }

    /// What sending it twice may do.
    pub fn semantics(&self) -> Semantics {
        Semantics::of(self.method).keyed(self.headers.contains_key(IDEMPOTENCY_KEY))
    }
}

/// A request whose destination can be written into it.
///
/// Implemented for `http::Request<B>`: scheme and authority become the endpoint's, path and query stay, and the
/// endpoint's [`TlsName`] goes into the extensions, if it has one.
#[diagnostic::on_unimplemented(
    message = "a balancer cannot write an endpoint into `{Self}`",
    label = "not `Addressed`",
    note = "it is implemented for `http::Request<B>`; for a type of your own implement `Addressed`"
)]
pub trait Addressed {
    /// Makes this endpoint the destination.
    fn send_to(&mut self, endpoint: &Endpoint, host: HostHeader);

    /// What the rule of a balancer may look at. Default: nothing.
    fn head(&self) -> Option<RequestHead<'_>> {
        None
    }

    /// Which requests it belongs together with. Default: none.
    fn affinity(&self) -> Option<Affinity> {
        None
    }
}

impl<B> Addressed for Request<B> {
    fn head(&self) -> Option<RequestHead<'_>> {
        Some(RequestHead::new(
            self.method(),
            self.uri(),
            self.headers(),
            self.extensions(),
        ))
    }

    fn affinity(&self) -> Option<Affinity> {
        self.extensions().get().copied()
    }

    fn send_to(&mut self, endpoint: &Endpoint, host: HostHeader) {
        let mut parts = std::mem::take(self.uri_mut()).into_parts();
        match host {
            HostHeader::OfEndpoint => {
                if !self.headers().is_empty() {
                    self.headers_mut().remove(HOST);
                }
            }
            HostHeader::OfRequest => {
                if let Some(original) = &parts.authority {
                    keep_host(self.headers_mut(), original);
                }
            }
        }
        parts.scheme = Some(endpoint.scheme().clone());
        parts.authority = Some(endpoint.authority().clone());
        if parts
            .path_and_query
            .as_ref()
            .is_none_or(|path| path.as_str().is_empty())
        {
            parts.path_and_query = Some(PathAndQuery::from_static("/"));
        }
        // Three whole parts always make an address.
        if let Ok(uri) = Uri::from_parts(parts) {
            *self.uri_mut() = uri;
        }
        match endpoint.tls_name_for_requests() {
            Some(name) => {
                self.extensions_mut().insert(name.clone());
            }
            // One of an endpoint that it was to go to before.
            None => {
                self.extensions_mut().remove::<TlsName>();
            }
        }
    }
}

#[cold]
fn keep_host(headers: &mut HeaderMap, original: &Authority) {
    if headers.contains_key(HOST) {
        return;
    }
    if let Ok(value) = HeaderValue::from_str(without_user(original.as_str())) {
        headers.insert(HOST, value);
    }
}

fn without_user(authority: &str) -> &str {
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

#[cfg(test)]
mod tests {
    use http::uri::Scheme;

    use super::*;

    fn sent(uri: &str, host: HostHeader) -> Request<()> {
        let endpoint = Endpoint::builder("https://10.0.0.1:8443").build().unwrap();
        let mut request = Request::get(uri).body(()).unwrap();
        request.send_to(&endpoint, host);
        request
    }

    #[test]
    fn scheme_and_authority_change_and_path_and_query_stay() {
        for (before, after) in [
            ("http://orders/a/b?c=d", "https://10.0.0.1:8443/a/b?c=d"),
            ("/a?b", "https://10.0.0.1:8443/a?b"),
            ("http://orders", "https://10.0.0.1:8443/"),
            ("orders:80", "https://10.0.0.1:8443/"),
            ("*", "https://10.0.0.1:8443*"),
        ] {
            let request = sent(before, HostHeader::OfEndpoint);
            if before != "*" {
                assert_eq!(request.uri().to_string(), after);
            } else {
                assert_eq!(request.uri().authority().unwrap(), "10.0.0.1:8443");
            }
            assert_eq!(request.uri().scheme(), Some(&Scheme::HTTPS));
        }
    }

    #[test]
    fn the_host_header_is_the_endpoints_or_the_callers_by_choice() {
        assert!(
            !sent("http://orders/", HostHeader::OfEndpoint)
                .headers()
                .contains_key(HOST)
        );
        assert_eq!(
            sent("http://me:secret@orders/", HostHeader::OfRequest).headers()[HOST],
            "orders"
        );
        let mut request = Request::get("http://orders/")
            .header(HOST, "shop")
            .body(())
            .unwrap();
        request.send_to(&Endpoint::new("a:1").unwrap(), HostHeader::OfRequest);
        assert_eq!(request.headers()[HOST], "shop");
        request.send_to(&Endpoint::new("b:1").unwrap(), HostHeader::OfEndpoint);
        assert!(!request.headers().contains_key(HOST));
    }

    #[test]
    fn the_tls_name_is_that_of_the_latest_endpoint() {
        let named = |name: &str| {
            Endpoint::builder("https://10.0.0.1")
                .tls_name(name)
                .build()
                .unwrap()
        };
        let mut request = Request::new(());
        let mut sent_to = |endpoint: &Endpoint| {
            request.send_to(endpoint, HostHeader::OfEndpoint);
            request
                .extensions()
                .get::<TlsName>()
                .map(|name| name.as_str().to_owned())
        };
        assert_eq!(sent_to(&named("a.example")).as_deref(), Some("a.example"));
        assert_eq!(sent_to(&named("b.example")).as_deref(), Some("b.example"));
        assert_eq!(sent_to(&Endpoint::new("https://10.0.0.1").unwrap()), None);
    }
}
