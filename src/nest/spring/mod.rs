//! A stack by the names and the rules of Spring Cloud.

mod beans;
mod config;
mod entries;
mod error;
mod feign;
mod hystrix;
mod keys;
mod nest;
mod release;
mod remark;
mod ribbon;
mod shells;
mod value;

use self::beans::Beans;
#[cfg(feature = "client")]
#[cfg_attr(docsrs, doc(cfg(feature = "client")))]
pub use self::nest::HttpSpringNest;
pub use self::{
    beans::{ErrorDecoder, Limits, Retryer, ReturnType},
    config::{SpringConfig, from_pairs},
    error::SpringError,
    feign::{Feign, FeignLayer, FeignUrl, FeignUrlLayer},
    hystrix::{Hystrix, HystrixLayer},
    nest::{NoFallback, SpringHandle, SpringNest, SpringNestBuilder},
    release::SpringRelease,
    remark::{Reason, Remark},
    ribbon::{AnyRule, Ribbon, RibbonLayer},
};
