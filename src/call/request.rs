//! What layers ask a request: what it may do to the server, and for a copy to send again.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version};

use super::{body::RepeatBody, overrides::Overrides, trail::NotRetried};

/// The header by which a client marks a request that the server carries out only once, however often it comes.
///
/// IETF draft-ietf-httpapi-idempotency-key-header.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// What sending a request a second time may do to a server that has seen it before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Semantics {
    class: Class,
    keyed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Get,
    Safe,
    Idempotent,
    Unsafe,
}

impl Semantics {
    /// A plain read, as GET is.
    pub const READ: Semantics = Semantics {
        class: Class::Get,
        keyed: false,
    };

    /// It changes nothing on the server, but is no GET: HEAD, OPTIONS, TRACE (RFC 9110, section 9.2.1).
    pub const SAFE: Semantics = Semantics {
        class: Class::Safe,
        keyed: false,
    };

    /// Doing it twice has the effect of doing it once: PUT, DELETE (RFC 9110, section 9.2.2).
    pub const IDEMPOTENT: Semantics = Semantics {
        class: Class::Idempotent,
        keyed: false,
    };

    /// Doing it twice may do harm: POST, PATCH, and every method that is not known.
    pub const UNSAFE: Semantics = Semantics {
        class: Class::Unsafe,
        keyed: false,
    };

    /// What a request with this method may do.
    pub fn of(method: &Method) -> Semantics {
        match *method {
            Method::GET => Semantics::READ,
            Method::HEAD | Method::OPTIONS | Method::TRACE => Semantics::SAFE,
            Method::PUT | Method::DELETE => Semantics::IDEMPOTENT,
            _ => Semantics::UNSAFE,
        }
    }

    /// The same, with or without a key by which the server knows it again.
    #[must_use]
    pub const fn keyed(mut self, keyed: bool) -> Semantics {
        self.keyed = keyed;
        self
    }

    /// Is it a GET, or a plain read like one?
    pub const fn is_get(self) -> bool {
        matches!(self.class, Class::Get)
    }

    /// Does it change nothing on the server?
    pub const fn is_safe(self) -> bool {
        matches!(self.class, Class::Get | Class::Safe)
    }

    /// Is twice as good as once, by the method alone?
    pub const fn is_idempotent(self) -> bool {
        !matches!(self.class, Class::Unsafe)
    }

    /// Does it carry a key by which the server knows it again?
    pub const fn is_keyed(self) -> bool {
        self.keyed
    }
}

/// A request that layers can ask what it may do, and for a copy.
///
/// It is implemented for `http::Request<B>` with any body that can be copied ([`RepeatBody`]: all that are `Clone`,
/// and `ReplayBody` or [`OnceBody`](super::OnceBody) around those that are not). For a type of your own it is a few
/// lines:
///
/// ```
/// use tower_outbound::call::{OutboundRequest, Semantics};
///
/// #[derive(Clone)]
/// struct Lookup(u64);
///
/// impl OutboundRequest for Lookup {
///     type Kept = Self;
///     fn semantics(&self) -> Semantics {
///         Semantics::READ
///     }
///     fn keep(&self) -> Option<Self> {
///         Some(self.clone())
///     }
///     fn restore(kept: &Self) -> Option<Self> {
///         Some(kept.clone())
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no request that can be sent again",
    label = "not an `OutboundRequest`",
    note = "for `http::Request<B>` the body must be `Clone`: wrap one that is not in `ReplayBody`, or in `OnceBody`, which is sent at most once",
    note = "for a type of your own implement `OutboundRequest`, or wrap it in `NotRepeatable`"
)]
pub trait OutboundRequest: Sized {
    /// A copy that is cheap to make and can be sent later.
    type Kept;

    /// What sending it a second time may do.
    fn semantics(&self) -> Semantics;

    /// Makes a copy. `None`: this request can be sent only once.
    fn keep(&self) -> Option<Self::Kept>;

    /// Makes the request again, when the attempt before has ended. `None`: it cannot be sent another time after all.
    fn restore(kept: &Self::Kept) -> Option<Self>;

    /// Could [`restore`](OutboundRequest::restore) make a request now? See [`RepeatBody::check_body`].
    ///
    /// # Errors
    ///
    /// The reason why not.
    fn check(_kept: &Self::Kept) -> Result<(), NotRetried> {
        Ok(())
    }

    /// Ready when [`check`](OutboundRequest::check) has come to fail while a retry is waited for. See
    /// [`RepeatBody::poll_body_lost`].
    fn poll_lost(_kept: &Self::Kept, _cx: &mut Context<'_>) -> Poll<NotRetried> {
        Poll::Pending
    }

    /// The attempt with the request last restored starts. See [`RepeatBody::take_over_body`].
    ///
    /// # Errors
    ///
    /// If it cannot be sent after all, the reason.
    fn take_over(_kept: &Self::Kept) -> Result<(), NotRetried> {
        Ok(())
    }

    /// What this request wants otherwise than the stack is set. Default: nothing.
    fn overrides(&self) -> Option<&Overrides> {
        None
    }
}

/// Makes a request of any type one that is sent at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotRepeatable<T>(pub T);

impl<T> OutboundRequest for NotRepeatable<T> {
    type Kept = std::convert::Infallible;

    fn semantics(&self) -> Semantics {
        Semantics::UNSAFE
    }

    fn keep(&self) -> Option<Self::Kept> {
        None
    }

    fn restore(kept: &Self::Kept) -> Option<Self> {
        match *kept {}
    }
}

impl<B: RepeatBody> OutboundRequest for Request<B> {
    type Kept = KeptRequest<B::Kept>;

    fn semantics(&self) -> Semantics {
        let key = self.headers().get(IDEMPOTENCY_KEY);
        // A blank one tells the server nothing.
        let keyed = key.is_some_and(|key| !key.as_bytes().trim_ascii().is_empty());
        Semantics::of(self.method()).keyed(keyed)
    }

    fn keep(&self) -> Option<Self::Kept> {
        Some(KeptRequest {
            body: self.body().keep_body()?,
            method: self.method().clone(),
            uri: self.uri().clone(),
            version: self.version(),
            headers: FlatHeaders::new(self.headers()),
            extensions: self.extensions().clone(),
        })
    }

    fn restore(kept: &Self::Kept) -> Option<Self> {
        let mut request = Request::new(B::restore_body(&kept.body)?);
        *request.method_mut() = kept.method.clone();
        *request.uri_mut() = kept.uri.clone();
        *request.version_mut() = kept.version;
        *request.headers_mut() = kept.headers.restore();
        *request.extensions_mut() = kept.extensions.clone();
        Some(request)
    }

    #[inline]
    fn check(kept: &Self::Kept) -> Result<(), NotRetried> {
        B::check_body(&kept.body)
    }

    #[inline]
    fn poll_lost(kept: &Self::Kept, cx: &mut Context<'_>) -> Poll<NotRetried> {
        B::poll_body_lost(&kept.body, cx)
    }

    #[inline]
    fn take_over(kept: &Self::Kept) -> Result<(), NotRetried> {
        B::take_over_body(&kept.body)
    }

    #[inline]
    fn overrides(&self) -> Option<&Overrides> {
        self.extensions().get()
    }
}

/// The kept copy of an `http::Request`. `K` is what is kept of its body.
///
/// Cloning a `HeaderMap` costs an allocation for each header that was made at run time; this copy holds all names
/// and values in one buffer, since most copies are never sent.
#[derive(Debug)]
pub struct KeptRequest<K> {
    method: Method,
    uri: Uri,
    version: Version,
    headers: FlatHeaders,
    extensions: Extensions,
    body: K,
}

/// Header names and values one after the other, and where each ends.
#[derive(Debug)]
struct FlatHeaders {
    text: Vec<u8>,
    names: usize,
}

/// What stands in front of each line: the lengths of name and value, and whether the value is a secret.
const PREFIX: usize = 9;

impl FlatHeaders {
    fn new(headers: &HeaderMap) -> Self {
        // Most lines fit into 64 bytes; a long cookie grows the buffer once.
        let mut text = Vec::with_capacity(headers.len() * 64);
        for (name, value) in headers {
            let (name, value, secret) = (name.as_str().as_bytes(), value.as_bytes(), value.is_sensitive());
            // Lengths beyond four bytes cannot come from a HeaderMap, which would take gigabytes.
            text.extend_from_slice(&(name.len() as u32).to_le_bytes());
            text.extend_from_slice(&(value.len() as u32).to_le_bytes());
            text.push(u8::from(secret));
            text.extend_from_slice(name);
            text.extend_from_slice(value);
        }
        FlatHeaders {
            text,
            names: headers.keys_len(),
        }
    }

    fn restore(&self) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(self.names);
        let text = Bytes::copy_from_slice(&self.text);
        let mut at = 0;
        while let Some((name, value, next)) = line(&text, at) {
            at = next;
            headers.append(name, value);
        }
        headers
    }
}

/// The line that begins at this place. `None` at the end: what was copied from a `HeaderMap` parses again.
fn line(text: &Bytes, at: usize) -> Option<(HeaderName, HeaderValue, usize)> {
    let prefix = text.get(at..at + PREFIX)?;
    let length = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize);
    let name_at = at + PREFIX;
    let value_at = name_at + length(&prefix[0..4])?;
    let end = value_at + length(&prefix[4..8])?;
    let name = HeaderName::from_bytes(text.get(name_at..value_at)?).ok()?;
    let mut value = HeaderValue::from_maybe_shared(text.slice(value_at..end)).ok()?;
    value.set_sensitive(prefix[8] == 1);
    Some((name, value, end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::call::OnceBody;

    fn restored<B: RepeatBody>(request: &Request<B>) -> Request<B> {
        Request::restore(&request.keep().unwrap()).unwrap()
    }

    #[test]
    fn a_restored_request_is_the_one_that_was_kept() {
        let mut request = Request::put("http://host/path?query")
            .version(Version::HTTP_10)
            .body("body")
            .unwrap();
        let mut secret = HeaderValue::from_static("secret");
        secret.set_sensitive(true);
        request.headers_mut().append("authorization", secret);
        request
            .headers_mut()
            .append("accept", HeaderValue::from_static("a"));
        request
            .headers_mut()
            .append("accept", HeaderValue::from_bytes(b"\xfcber\xff").unwrap());
        request
            .headers_mut()
            .append("x-empty", HeaderValue::from_static(""));
        request.extensions_mut().insert(7_u8);

        let again = restored(&request);

        assert_eq!(again.method(), request.method());
        assert_eq!(again.uri(), request.uri());
        assert_eq!(again.version(), request.version());
        assert_eq!(again.headers(), request.headers());
        assert!(again.headers()["authorization"].is_sensitive());
        assert!(!again.headers()["accept"].is_sensitive());
        assert_eq!(again.extensions().get::<u8>(), Some(&7));
        assert_eq!(again.body(), request.body());
    }

    proptest! {
        #[test]
        fn any_headers_survive(lines in prop::collection::vec(("[a-z][a-z0-9-]{0,40}", "[ -~\u{80}-\u{ff}]{0,200}"), 0..20)) {
            let mut request = Request::new(());
            for (name, value) in &lines {
                request.headers_mut().append(
                    HeaderName::from_bytes(name.as_bytes()).unwrap(),
                    HeaderValue::from_bytes(value.as_bytes()).unwrap(),
                );
            }
            let again = restored(&request);
            prop_assert_eq!(again.headers(), request.headers());
        }
    }

    #[test]
    fn thousands_of_lines_of_one_header_survive() {
        let mut request = Request::new(());
        for _ in 0..30_000 {
            request.headers_mut().append("x", HeaderValue::from_static("1"));
        }
        assert_eq!(restored(&request).headers().len(), 30_000);
    }

    #[test]
    fn methods_have_the_semantics_of_rfc_9110_and_unknown_ones_are_unsafe() {
        let of = |name: &str| {
            let method = Method::from_bytes(name.as_bytes()).unwrap();
            Semantics::of(&method)
        };
        for (method, get, safe, idempotent) in [
            ("GET", true, true, true),
            ("HEAD", false, true, true),
            ("OPTIONS", false, true, true),
            ("TRACE", false, true, true),
            ("PUT", false, false, true),
            ("DELETE", false, false, true),
            ("POST", false, false, false),
            ("PATCH", false, false, false),
            ("CONNECT", false, false, false),
            ("LOCK", false, false, false),
            ("get", false, false, false),
        ] {
            let semantics = of(method);
            let seen = (semantics.is_get(), semantics.is_safe(), semantics.is_idempotent());
            assert_eq!(seen, (get, safe, idempotent), "{method}");
        }
    }

    #[test]
    fn a_key_in_the_header_is_seen() {
        let plain = Request::post("/").body(()).unwrap();
        let keyed = Request::post("/")
            .header("Idempotency-Key", "k1")
            .body(())
            .unwrap();
        assert!(!plain.semantics().is_keyed());
        let blank = Request::post("/")
            .header("idempotency-key", " ")
            .body(())
            .unwrap();
        assert!(!blank.semantics().is_keyed());
        assert!(keyed.semantics().is_keyed());
    }

    #[test]
    fn what_cannot_be_repeated_is_not_kept() {
        assert!(NotRepeatable(()).keep().is_none());
        assert!(Request::new(OnceBody::new(String::new())).keep().is_none());
    }
}
