//! All layers in one stack. This is the only place that knows more than one layer.
//!
//! - [`ServiceBuilderExt`] gives tower's `ServiceBuilder` a method for each layer, so that a stack reads as the nest.
//! - `Nest` makes the standard stack from a few settings.
//! - `spring` makes it from the settings of a Spring Cloud client, with the habits of that one.
//! - [`client`] sets up a hyper-util client the way the stack needs it.

#[cfg(feature = "nest")]
mod builder;
#[cfg(feature = "client")]
#[cfg_attr(docsrs, doc(cfg(feature = "client")))]
pub mod client;
mod ext;
#[cfg(any(feature = "client", feature = "reqwest"))]
mod no_tls_names;
#[cfg(feature = "nest")]
mod plan;
#[cfg(feature = "reqwest")]
mod reqwest;
#[cfg(feature = "nest")]
mod service;
#[cfg(feature = "nest")]
mod settings;
#[cfg(feature = "nest")]
#[cfg_attr(docsrs, doc(cfg(feature = "nest")))]
pub mod spring;

pub use self::ext::{CallsExt, ServiceBuilderExt};
#[cfg(feature = "reqwest")]
#[cfg_attr(docsrs, doc(cfg(feature = "reqwest")))]
pub use self::reqwest::{ReqwestClient, ReqwestClientFuture};
#[cfg(all(feature = "nest", feature = "client"))]
#[cfg_attr(docsrs, doc(cfg(all(feature = "nest", feature = "client"))))]
pub use self::service::HttpNest;
#[cfg(feature = "nest")]
#[cfg_attr(docsrs, doc(cfg(feature = "nest")))]
pub use self::{
    builder::NestBuilder,
    plan::{Finding, Plan},
    service::{Nest, NestHandle},
};
