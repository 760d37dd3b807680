//! A list in the configuration.

use crate::call::{ConfigError, Endpoint, Endpoints};

impl Endpoints {
    /// The endpoints at these addresses, as a configuration lists them (Ribbon's `listOfServers`).
    ///
    /// Space around an address does not matter. An address that is there twice counts once.
    ///
    /// ```
    /// use tower_outbound::call::Endpoints;
    ///
    /// let orders = Endpoints::from_list("10.0.0.1:8080, https://10.0.0.2".split(','))?;
    /// assert_eq!(orders.len(), 2);
    /// # Ok::<(), tower_outbound::call::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If one is no address: see [`EndpointBuilder::build`](crate::call::EndpointBuilder::build). An empty list is
    /// none, and a set that can be filled later.
    pub fn from_list<I>(addresses: I) -> Result<Self, ConfigError>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        addresses
            .into_iter()
            .map(|address| Endpoint::new(address.as_ref().trim()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_trimmed_and_a_wrong_one_is_named() {
        let set = Endpoints::from_list([" a:1", "b:2 ", "a:1"]).unwrap();
        let snapshot = set.snapshot();
        let keys: Vec<_> = snapshot.endpoints().iter().map(Endpoint::key).collect();
        assert_eq!(keys, ["http://a:1", "http://b:2"]);
        assert!(Endpoints::from_list(["a:1", ""]).is_err());
        let error = Endpoints::from_list(["a:1", "b:2/path"]).unwrap_err();
        assert!(error.value().contains("b:2/path"), "{error}");
        assert!(Endpoints::from_list::<[&str; 0]>([]).unwrap().is_empty());
    }
}
