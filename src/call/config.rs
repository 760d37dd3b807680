//! Mistakes in configuration, found when a layer is built.

use std::{borrow::Cow, error::Error, fmt, time::Duration};

/// The longest duration that a limit may have: ten years.
///
/// Longer ones are mistakes (a number in the wrong unit), and near the end of the clock's range adding them to
/// an instant would overflow.
pub const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// A setting that cannot be right, with what to do about it.
///
/// Every builder of this crate ends in `Result<_, ConfigError>`: a mistake shows when the stack is built, never in
/// a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    layer: &'static str,
    field: &'static str,
    value: String,
    fix: Cow<'static, str>,
}

impl ConfigError {
    /// Names the layer, its field, the value that was given and the way to mend it.
    pub fn new(
        layer: &'static str,
        field: &'static str,
        value: impl fmt::Display,
        fix: impl Into<Cow<'static, str>>,
    ) -> Self {
        ConfigError {
            layer,
            field,
            value: value.to_string(),
            fix: fix.into(),
        }
    }

    /// The layer whose setting is wrong.
    pub fn layer(&self) -> &'static str {
        self.layer
    }

    /// The setting, by the name of its builder method or field.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// The value that was given.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// What to write in its place.
    pub fn fix(&self) -> &str {
        &self.fix
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: `{}` is {}: {}",
            self.layer, self.field, self.value, self.fix
        )
    }
}

impl Error for ConfigError {}

/// A limit or a window: above zero and at most [`LONGEST`].
#[allow(
    dead_code,
    reason = "which checks are used depends on the layers that are switched on"
)]
pub(crate) fn limit(
    layer: &'static str,
    field: &'static str,
    value: Duration,
) -> Result<Duration, ConfigError> {
    if value.is_zero() {
        return Err(ConfigError::new(
            layer,
            field,
            "0 s",
            "give a duration above zero",
        ));
    }
    pause(layer, field, value)
}

/// A pause: zero or more, at most [`LONGEST`].
#[allow(
    dead_code,
    reason = "which checks are used depends on the layers that are switched on"
)]
pub(crate) fn pause(
    layer: &'static str,
    field: &'static str,
    value: Duration,
) -> Result<Duration, ConfigError> {
    if value > LONGEST {
        return Err(ConfigError::new(
            layer,
            field,
            format_args!("{value:?}"),
            "give at most ten years; is the number in another unit?",
        ));
    }
    Ok(value)
}

/// A count of at least one.
#[allow(
    dead_code,
    reason = "which checks are used depends on the layers that are switched on"
)]
pub(crate) fn at_least_one(layer: &'static str, field: &'static str, value: u32) -> Result<u32, ConfigError> {
    if value == 0 {
        Err(ConfigError::new(layer, field, 0, "give 1 or more"))
    } else {
        Ok(value)
    }
}

/// A percentage from 0 to 100.
#[allow(
    dead_code,
    reason = "which checks are used depends on the layers that are switched on"
)]
pub(crate) fn percent(layer: &'static str, field: &'static str, value: f64) -> Result<f64, ConfigError> {
    if (0.0..=100.0).contains(&value) {
        Ok(value)
    } else {
        Err(ConfigError::new(
            layer,
            field,
            value,
            "give a percentage from 0 to 100",
        ))
    }
}

/// A name that a person can find again in an error or a metric.
#[allow(
    dead_code,
    reason = "which checks are used depends on the layers that are switched on"
)]
pub(crate) fn name(layer: &'static str, field: &'static str, value: &str) -> Result<(), ConfigError> {
    if value.trim().is_empty() {
        Err(ConfigError::new(
            layer,
            field,
            "empty",
            "give a name that tells it from others in errors and metrics",
        ))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_layer_field_value_and_fix() {
        let error = limit("ReadTimeout", "limit", Duration::ZERO).unwrap_err();
        assert_eq!(
            error.to_string(),
            "ReadTimeout: `limit` is 0 s: give a duration above zero"
        );
        assert_eq!(
            (error.layer(), error.field(), error.value(), error.fix()),
            ("ReadTimeout", "limit", "0 s", "give a duration above zero")
        );
    }

    #[test]
    fn the_edges_of_each_check_are_where_they_are_said_to_be() {
        assert!(limit("x", "y", Duration::from_nanos(1)).is_ok());
        assert!(limit("x", "y", LONGEST).is_ok());
        assert!(limit("x", "y", LONGEST + Duration::from_nanos(1)).is_err());
        assert!(limit("x", "y", Duration::MAX).is_err());
        assert!(pause("x", "y", Duration::ZERO).is_ok());
        assert!(at_least_one("x", "y", 0).is_err());
        assert!(at_least_one("x", "y", 1).is_ok());
        assert!(percent("x", "y", 0.0).is_ok());
        assert!(percent("x", "y", 100.0).is_ok());
        assert!(percent("x", "y", 100.1).is_err());
        assert!(percent("x", "y", -0.1).is_err());
        assert!(percent("x", "y", f64::NAN).is_err());
        assert!(name("x", "y", " ").is_err());
        assert!(name("x", "y", "orders").is_ok());
    }
}
