//! What a balancer of services reads of a request, and writes into it.

use crate::call::{Addressed, Endpoint, HostHeader};

/// Which requests a [`BalanceServices`](super::BalanceServices) takes: [`ByHead`] or [`AnyRequest`].
#[diagnostic::on_unimplemented(
    message = "a balancer of services cannot show `{Request}` to its rule",
    label = "not `Addressed`",
    note = "if the rule need not see it call `any_request()`; otherwise implement `Addressed` for a type of your own"
)]
pub trait RequestView<Request>: sealed::Sealed {
    /// What the rule may look at.
    #[doc(hidden)]
    fn shown<'a>(&self, request: &'a Request) -> &'a dyn Addressed;

    /// The request goes to this endpoint.
    #[doc(hidden)]
    fn address(&self, request: &mut Request, endpoint: &Endpoint);
}

/// Requests that the rule can look at: those that are [`Addressed`], as `http::Request` is.
#[derive(Debug, Clone, Copy)]
pub struct ByHead {
    pub(super) write: Option<HostHeader>,
}

/// Requests of any type. The rule sees nothing of them.
#[derive(Debug, Clone, Copy)]
pub struct AnyRequest(pub(super) ());

#[diagnostic::do_not_recommend]
impl<Request: Addressed> RequestView<Request> for ByHead {
    #[inline]
    fn shown<'a>(&self, request: &'a Request) -> &'a dyn Addressed {
        request
    }

    #[inline]
    fn address(&self, request: &mut Request, endpoint: &Endpoint) {
        if let Some(host) = self.write {
            request.send_to(endpoint, host);
        }
    }
}

impl<Request> RequestView<Request> for AnyRequest {
    #[inline]
    fn shown<'a>(&self, _: &'a Request) -> &'a dyn Addressed {
        &Unseen
    }

    #[inline]
    fn address(&self, _: &mut Request, _: &Endpoint) {}
}

struct Unseen;

impl Addressed for Unseen {
    fn send_to(&mut self, _: &Endpoint, _: HostHeader) {}
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::ByHead {}
    impl Sealed for super::AnyRequest {}
}
