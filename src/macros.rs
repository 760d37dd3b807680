//! What every service of this crate has.

/// Access to the service below, which is the field `inner` of this type.
#[allow(unused_macros, reason = "every layer that uses it is a feature")]
macro_rules! inner_service {
    ($inner:ty) => {
        /// The service below.
        pub fn get_ref(&self) -> &$inner {
            &self.inner
        }

        /// The service below, to be changed.
        pub fn get_mut(&mut self) -> &mut $inner {
            &mut self.inner
        }

        /// The service below, without this layer.
        pub fn into_inner(self) -> $inner {
            self.inner
        }
    };
}

#[allow(unused_imports, reason = "every layer that uses it is a feature")]
pub(crate) use inner_service;
