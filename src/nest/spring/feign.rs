//! The shell of Feign.

use std::time::Duration;

use http::StatusCode;
use tower_layer::Layer;

use super::{Limits, ReturnType, SpringConfig, beans::statuses};
use crate::{
    call::ConfigError,
    classify::{StatusErrorClassifier, StatusErrorClassifierLayer, StatusPolicy},
    collect::{CollectBody, CollectBodyLayer},
    retry::{Backoff, BackoffRetry, BackoffRetryLayer},
    timeout::{ReadTimeout, ReadTimeoutLayer},
};

/// Feign reads the body of a `Response` up to this length, if its length is told (`MAX_RESPONSE_BUFFER_SIZE`).
const KNOWN: u64 = 8192;

/// A service in the shell of Feign. Made by a [`FeignLayer`].
pub type Feign<S> = CollectBody<BackoffRetry<StatusErrorClassifier<S>>>;

/// The shell of Feign: decoding, and retries with pauses. Made by [`SpringConfig::feign`].
///
/// ```text
/// CollectBody             reads the body before the call ends, by the return type
/// BackoffRetry            Feign's Retryer
/// StatusErrorClassifier   Feign's ErrorDecoder
/// ```
#[derive(Debug, Clone)]
pub struct FeignLayer {
    collect: CollectBodyLayer,
    retry: BackoffRetryLayer,
    classify: StatusErrorClassifierLayer,
}

impl SpringConfig {
    pub(super) fn backoff(&self) -> Result<Backoff, ConfigError> {
        self.beans.retryer.backoff(self.beans.decoder)
    }

    pub(super) fn statuses(&self) -> StatusPolicy {
        statuses(self.beans.decoder, self.decodes_404(), self.beans.return_type)
    }

    fn collect(&self) -> CollectBodyLayer {
        let layer = CollectBodyLayer::new().max_body(self.beans.max_body);
        match self.beans.return_type {
            ReturnType::Body if self.decodes_404() => layer.unread_status(StatusCode::NOT_FOUND),
            ReturnType::Body => layer,
            ReturnType::Void => layer.unread(),
            ReturnType::Response => layer.known_up_to(KNOWN),
        }
    }
}

impl FeignLayer {
    pub(super) fn new(config: &SpringConfig, read: Duration) -> Result<Self, ConfigError> {
        Ok(FeignLayer {
            collect: config.collect(),
            retry: BackoffRetryLayer::new(config.backoff()?),
            // Feign reads the body of an error to its end, which one read limit bounds if it stalls.
            classify: StatusErrorClassifierLayer::new(config.statuses()).body_wait(read)?,
        })
    }
}

impl<S> Layer<S> for FeignLayer {
    type Service = Feign<S>;

    fn layer(&self, inner: S) -> Self::Service {
        self.collect.layer(self.retry.layer(self.classify.layer(inner)))
    }
}

/// A service in the shell of Feign, with no Ribbon below it. Made by a [`FeignUrlLayer`].
pub type FeignUrl<S> = Feign<ReadTimeout<S>>;

/// The shell of a Feign client with a `url` on its annotation, which goes past Ribbon. Made by
/// [`SpringConfig::feign_with_url`].
///
/// It is a [`FeignLayer`] and, in the place of Ribbon, a `ReadTimeout`. The connect limit belongs to the client:
/// [`SpringConfig::url_limits`].
#[derive(Debug, Clone)]
pub struct FeignUrlLayer {
    feign: FeignLayer,
    read: ReadTimeoutLayer,
}

impl FeignUrlLayer {
    pub(super) fn new(config: &SpringConfig) -> Result<Self, ConfigError> {
        let Limits { read, .. } = config.url_limits();
        Ok(FeignUrlLayer {
            feign: FeignLayer::new(config, read)?,
            read: ReadTimeoutLayer::new(read)?,
        })
    }
}

impl<S> Layer<S> for FeignUrlLayer {
    type Service = FeignUrl<S>;

    fn layer(&self, inner: S) -> Self::Service {
        self.feign.layer(self.read.layer(inner))
    }
}
