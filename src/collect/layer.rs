//! The layer and what it reads.

use http::StatusCode;
use tower_layer::Layer;

use super::CollectBody;

/// Puts a [`CollectBody`] around a service.
///
/// See the [module](super) for what it does and an example.
#[derive(Debug, Clone)]
pub struct CollectBodyLayer {
    reads: Reads,
}

/// Which bodies are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    /// Each, but for one status; a longer one is an error.
    Whole { most: u64, unread: Option<StatusCode> },
    /// Those whose length was announced and is at most this.
    KnownUpTo(u64),
    /// None.
    Nothing,
}

/// What the whole of a body may be, where nothing is said: 16 MiB.
const MOST: u64 = 16 * 1024 * 1024;

impl CollectBodyLayer {
    /// Reads each body to its end. One of more than 16 MiB is an error.
    pub fn new() -> Self {
        CollectBodyLayer {
            reads: Reads::Whole {
                most: MOST,
                unread: None,
            },
        }
    }

    /// Reads each body to its end, and takes this many bytes at most. A longer body is an error.
    ///
    /// They are held in memory for each call.
    #[must_use]
    pub fn max_body(mut self, bytes: u64) -> Self {
        self.reads = Reads::Whole {
            most: bytes,
            unread: self.unread_one(),
        };
        self
    }

    /// Reads a body whose length was announced and is at most this, and hands all others over as they are.
    ///
    /// So does Feign for a method that returns a `Response`, up to 8192 bytes.
    #[must_use]
    pub fn known_up_to(mut self, bytes: u64) -> Self {
        self.reads = Reads::KnownUpTo(bytes);
        self
    }

    /// Reads nothing: the body is dropped, and the answer has an empty one.
    ///
    /// So does Feign for a method that returns nothing. A body that would have broken off goes unnoticed. Over HTTP/1
    /// the connection is closed if there is more of the body to come.
    #[must_use]
    pub fn unread(mut self) -> Self {
        self.reads = Reads::Nothing;
        self
    }

    /// Reads each body to its end but those of answers with this status, which are dropped as by
    /// [`unread`](CollectBodyLayer::unread). A second status replaces the first.
    ///
    /// So does Feign with a 404 that `decode404` makes an answer.
    #[must_use]
    pub fn unread_status(mut self, status: StatusCode) -> Self {
        let most = match self.reads {
            Reads::Whole { most, .. } => most,
            _ => MOST,
        };
        self.reads = Reads::Whole {
            most,
            unread: Some(status),
        };
        self
    }

    fn unread_one(&self) -> Option<StatusCode> {
        match self.reads {
            Reads::Whole { unread, .. } => unread,
            _ => None,
        }
    }
}

impl Default for CollectBodyLayer {
    fn default() -> Self {
        CollectBodyLayer::new()
    }
}

impl<S> Layer<S> for CollectBodyLayer {
    type Service = CollectBody<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CollectBody::new(inner, self.reads)
    }
}
