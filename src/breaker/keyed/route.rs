//! Keys that requests over HTTP have.

use std::{borrow::Cow, fmt};

use http::Request;

/// Host and port of the request, as they stand in its address, without a user and a password: the key stands in errors and
/// events. None in a request without.
///
/// A key for [`KeyedBreakerLayer`](super::KeyedBreakerLayer).
pub fn by_authority<B>(request: &Request<B>) -> Option<Cow<'_, str>> {
    let authority = request.uri().authority()?.as_str();
    let host_and_port = authority.rsplit_once('@').map_or(authority, |(_, after)| after);
    Some(Cow::Borrowed(host_and_port))
}

/// The [`Route`] in the extensions of the request. None in a request without.
///
/// A key for [`KeyedBreakerLayer`](super::KeyedBreakerLayer).
pub fn by_route<B>(request: &Request<B>) -> Option<Cow<'_, str>> {
    let route: &Route = request.extensions().get()?;
    Some(Cow::Borrowed(route.as_str()))
}

/// What kind of call this is, such as `GET /orders/{id}`, for whoever makes requests to put into their extensions.
///
/// The path itself is no key where it has numbers in it: there would be a breaker for each of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Route(Cow<'static, str>);

impl Route {
    /// With this name.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Route(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
