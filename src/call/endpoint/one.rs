//! One server.

use std::{any::Any, fmt, net::Ipv6Addr, panic::AssertUnwindSafe, str::FromStr, sync::Arc, sync::OnceLock};

use http::{
    Uri,
    uri::{Authority, Scheme},
};

#[cfg(feature = "balance")]
use super::Affinity;
use super::{Eligibility, TlsName};
use crate::call::ConfigError;

/// A server that calls can go to. Cloning it is cheap, and all clones are one endpoint: a veto put on one is seen
/// through all.
///
/// ```
/// use tower_outbound::call::Endpoint;
///
/// let plain: Endpoint = "http://10.0.0.1:8080".parse()?;
/// let full = Endpoint::builder("https://10.0.0.2").zone("eu-1").weight(3).tls_name("orders.example").build()?;
/// assert_eq!(plain.key(), "http://10.0.0.1:8080");
/// assert_eq!(full.zone(), Some("eu-1"));
/// # Ok::<(), tower_outbound::call::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Endpoint(Arc<Inner>);

/// What a call looks at comes first: that is one line of the processor's cache, or two.
#[repr(C)]
struct Inner {
    eligibility: Eligibility,
    description: Description,
    /// Of the key.
    #[cfg(feature = "balance")]
    affinity: Affinity,
    /// What a set of services keeps with it. It is no part of the description, and stays for good.
    attached: OnceLock<Attached>,
}

type Attached = AssertUnwindSafe<Box<dyn Any + Send + Sync>>;

#[derive(Debug, Clone, PartialEq, Eq)]
#[repr(C)]
struct Description {
    weight: u32,
    scheme: Scheme,
    authority: Authority,
    tls_name: Option<TlsName>,
    key: Box<str>,
    zone: Option<Box<str>>,
    metadata: Box<[(Box<str>, Box<str>)]>,
}

impl Endpoint {
    /// The endpoint at `scheme://host:port`, or `host:port` for plain HTTP.
    ///
    /// # Errors
    ///
    /// See [`EndpointBuilder::build`].
    pub fn new(uri: impl Into<String>) -> Result<Self, ConfigError> {
        Endpoint::builder(uri).build()
    }

    /// Begins an endpoint at this address, with more to say about it.
    pub fn builder(uri: impl Into<String>) -> EndpointBuilder {
        EndpointBuilder {
            uri: uri.into(),
            key: None,
            zone: None,
            weight: 1,
            tls_name: None,
            metadata: Vec::new(),
        }
    }

    /// What tells it from others; `scheme://authority` if nothing else was said.
    pub fn key(&self) -> &str {
        &self.0.description.key
    }

    /// The scheme that it is spoken to with.
    pub fn scheme(&self) -> &Scheme {
        &self.0.description.scheme
    }

    /// Its host and port.
    pub fn authority(&self) -> &Authority {
        &self.0.description.authority
    }

    /// The zone that it is in.
    pub fn zone(&self) -> Option<&str> {
        self.0.description.zone.as_deref()
    }

    /// Its share of the traffic relative to others, under rules that look at it. 1 if nothing else was said.
    pub fn weight(&self) -> u32 {
        self.0.description.weight
    }

    /// The name that its certificate must carry, if that is not its host.
    pub fn tls_name(&self) -> Option<&str> {
        self.0.description.tls_name.as_ref().map(TlsName::as_str)
    }

    /// The same name, as a request to the endpoint carries it.
    pub(super) fn tls_name_for_requests(&self) -> Option<&TlsName> {
        self.0.description.tls_name.as_ref()
    }

    /// What else discovery tells of it under this name.
    pub fn metadata(&self, name: &str) -> Option<&str> {
        self.0
            .description
            .metadata
            .iter()
            .find(|(key, _)| **key == *name)
            .map(|(_, value)| &**value)
    }

    /// Whether it may be picked.
    pub fn eligibility(&self) -> &Eligibility {
        &self.0.eligibility
    }

    /// Another endpoint with the same description.
    #[allow(dead_code, reason = "called by a set that is a feature")]
    pub(super) fn copy(&self) -> Self {
        Endpoint(Arc::new(Inner {
            #[cfg(feature = "balance")]
            affinity: self.0.affinity,
            description: self.0.description.clone(),
            eligibility: Eligibility::default(),
            attached: OnceLock::new(),
        }))
    }

    /// Attaches this, unless something is attached already.
    #[allow(dead_code, reason = "called by a set that is a feature")]
    pub(super) fn attach<T: Send + Sync + 'static>(&self, what: impl FnOnce() -> T) {
        self.0.attached.get_or_init(|| AssertUnwindSafe(Box::new(what())));
    }

    /// What is attached, if it is of this type.
    #[allow(dead_code, reason = "called by a set that is a feature")]
    #[inline]
    pub(super) fn attached<T: 'static>(&self) -> Option<&T> {
        self.0.attached.get()?.downcast_ref()
    }

    /// What rules rank it by.
    #[cfg(feature = "balance")]
    pub(crate) fn affinity(&self) -> Affinity {
        self.0.affinity
    }

    /// Do both say the same of a server, be they one endpoint or not?
    pub fn describes_the_same(&self, other: &Endpoint) -> bool {
        self.0.description == other.0.description
    }
}

/// Two handles are equal if they are one endpoint.
impl PartialEq for Endpoint {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Endpoint {}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.authority().fmt(f)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("description", &self.0.description)
            .field("eligible", &self.0.eligibility.is_eligible())
            .finish()
    }
}

impl FromStr for Endpoint {
    type Err = ConfigError;

    fn from_str(uri: &str) -> Result<Self, ConfigError> {
        Endpoint::new(uri)
    }
}

impl TryFrom<&str> for Endpoint {
    type Error = ConfigError;

    fn try_from(uri: &str) -> Result<Self, ConfigError> {
        Endpoint::new(uri)
    }
}

/// What is said of an [`Endpoint`] before it is one.
#[derive(Debug, Clone)]
pub struct EndpointBuilder {
    uri: String,
    key: Option<String>,
    zone: Option<String>,
    weight: u32,
    tls_name: Option<String>,
    metadata: Vec<(Box<str>, Box<str>)>,
}

impl EndpointBuilder {
    /// What tells it from others. Default: `scheme://authority`.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The zone that it is in. Default: none.
    pub fn zone(mut self, zone: impl Into<String>) -> Self {
        self.zone = Some(zone.into());
        self
    }

    /// Its share of the traffic relative to others. Default: 1.
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// The name that its certificate must carry. Default: its host.
    ///
    /// A balancer writes it into the extensions of requests to the endpoint, as a [`TlsName`], and the client verifies
    /// the server by it: one that was made with `ClientBuilder::build_tls`, or one of yours that looks for it.
    pub fn tls_name(mut self, name: impl Into<String>) -> Self {
        self.tls_name = Some(name.into());
        self
    }

    /// Something else to be told of it.
    pub fn metadata(mut self, name: impl Into<Box<str>>, value: impl Into<Box<str>>) -> Self {
        self.metadata.push((name.into(), value.into()));
        self
    }

    /// The endpoint.
    ///
    /// # Errors
    ///
    /// If the address is no `scheme://host:port` or `host:port`, names a user, a path, a query or a fragment, or if a
    /// key, a zone or a name is empty, the TLS name is none or the scheme plain `http`, or the weight is zero.
    pub fn build(self) -> Result<Endpoint, ConfigError> {
        let bad =
            |fix: &'static str| ConfigError::new("Endpoint", "uri", format_args!("{:?}", self.uri), fix);
        if self.uri.contains('@') {
            // The value itself must not be shown: it may hold a password.
            let host = self.uri.rsplit('@').next().unwrap_or_default();
            return Err(ConfigError::new(
                "Endpoint",
                "uri",
                format_args!("an address with a user in it, at {host:?}"),
                "send credentials in a header",
            ));
        }
        let uri: Uri = self
            .uri
            .parse()
            .map_err(|_| bad("give scheme://host:port or host:port"))?;
        let authority = uri
            .authority()
            .ok_or_else(|| bad("give scheme://host:port or host:port"))?
            .clone();
        if !is_host(authority.host()) {
            return Err(bad(
                "give a host name, an IPv4 address, or an IPv6 address in brackets",
            ));
        }
        if !is_port_or_none(&authority.as_str()[authority.host().len()..]) {
            return Err(bad("give a port from 1 to 65535, or leave it away"));
        }
        if self.uri.contains('#') {
            return Err(bad("leave the fragment away"));
        }
        if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
            return Err(bad("leave path and query away: a call brings its own"));
        }
        let scheme = uri.scheme().cloned().unwrap_or(Scheme::HTTP);
        let key = self.key.unwrap_or_else(|| format!("{scheme}://{authority}"));
        for (field, value) in [
            ("key", Some(&key)),
            ("zone", self.zone.as_ref()),
            ("tls_name", self.tls_name.as_ref()),
        ] {
            if value.is_some_and(|value| value.trim().is_empty()) {
                return Err(ConfigError::new(
                    "Endpoint",
                    field,
                    "empty",
                    "give a name, or leave it away",
                ));
            }
        }
        if self.metadata.iter().any(|(name, _)| name.trim().is_empty()) {
            return Err(ConfigError::new(
                "Endpoint",
                "metadata",
                "a value without a name",
                "give it a name",
            ));
        }
        if let Some(name) = &self.tls_name {
            let fix = if scheme == Scheme::HTTP {
                "give an address with https://, or leave the name away"
            } else if is_host(name) {
                ""
            } else {
                "give a host name"
            };
            if !fix.is_empty() {
                return Err(ConfigError::new(
                    "Endpoint",
                    "tls_name",
                    format_args!("{name:?}"),
                    fix,
                ));
            }
        }
        if self.weight == 0 {
            return Err(ConfigError::new(
                "Endpoint",
                "weight",
                0,
                "give 1 or more; to take it out of service leave it out, or put a veto on it",
            ));
        }
        Ok(Endpoint(Arc::new(Inner {
            #[cfg(feature = "balance")]
            affinity: Affinity::of(&key),
            description: Description {
                key: key.into(),
                scheme,
                authority,
                zone: self.zone.map(Into::into),
                weight: self.weight,
                tls_name: self.tls_name.map(|name| TlsName::new(&name)),
                metadata: self.metadata.into(),
            },
            eligibility: Eligibility::default(),
            attached: OnceLock::new(),
        })))
    }
}

/// A name of letters, digits, dots, dashes and underscores, or an IPv6 address in brackets.
fn is_host(host: &str) -> bool {
    let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match inside {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => {
            host.bytes().any(|byte| byte.is_ascii_alphanumeric())
                && host
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
        }
    }
}

/// What follows the host: nothing, or a colon and a port.
fn is_port_or_none(text: &str) -> bool {
    let Some(port) = text.strip_prefix(':') else {
        return text.is_empty();
    };
    port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_is_http_unless_it_is_said() {
        let plain = Endpoint::new("host:8080").unwrap();
        assert_eq!(
            (plain.scheme(), plain.authority().as_str()),
            (&Scheme::HTTP, "host:8080")
        );
        let tls = Endpoint::new("https://host/").unwrap();
        assert_eq!((tls.scheme(), tls.key()), (&Scheme::HTTPS, "https://host"));
        assert_eq!(Endpoint::new("[::1]:80").unwrap().key(), "http://[::1]:80");
    }

    #[test]
    fn wrong_addresses_are_refused_with_the_reason() {
        for (uri, says) in [
            ("", "give scheme"),
            ("/path", "give scheme"),
            ("http://host/path", "path and query"),
            ("http://host?query", "path and query"),
            ("http://user:pass@host", "header"),
            ("http://user:pass@ho st", "header"),
            ("a:99999", "port"),
            ("a:", "port"),
            ("a:0", "port"),
            ("a:b", "port"),
            ("a:+80", "port"),
            ("http:a", "port"),
            ("http://a:-1", "port"),
            (":80", "host"),
            (":", "host"),
            ("a,b", "host"),
            ("-:1", "host"),
            ("http://[::1", "give"),
            ("http://a#f", "fragment"),
            ("ht tp://x", "give scheme"),
        ] {
            let error = Endpoint::new(uri).unwrap_err();
            assert!(error.fix().contains(says), "{uri}: {error}");
            assert!(!error.to_string().contains("pass@"), "{error}");
        }
        assert_eq!(
            Endpoint::builder("a:1").weight(0).build().unwrap_err().field(),
            "weight"
        );
        let named = |uri: &str, name: &str| Endpoint::builder(uri).tls_name(name).build();
        assert!(named("https://a", "orders.example").is_ok());
        for (uri, name) in [
            ("http://a", "orders.example"),
            ("https://a", "not a name!"),
            ("https://a", " "),
        ] {
            assert_eq!(named(uri, name).unwrap_err().field(), "tls_name");
        }
        let nameless = Endpoint::builder("a:1").metadata("", "x").build();
        assert_eq!(nameless.unwrap_err().field(), "metadata");
        assert!(Endpoint::new("under_score-and.dots:65535").is_ok());
        assert_eq!(
            Endpoint::builder("a:1").zone(" ").build().unwrap_err().field(),
            "zone"
        );
    }

    #[test]
    fn equal_descriptions_are_not_one_endpoint() {
        let (a, b) = (Endpoint::new("a:1").unwrap(), Endpoint::new("a:1").unwrap());
        assert!(a.describes_the_same(&b) && a != b && a == a.clone());
    }
}
