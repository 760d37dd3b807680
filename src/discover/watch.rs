//! A channel that holds the whole list.

use tokio::sync::watch::Receiver;

use crate::call::{Endpoint, Endpoints};

impl Endpoints {
    /// The endpoints that a `watch` channel holds.
    ///
    /// The list that it holds now is in the set when this returns; later ones follow from the first call on, and the
    /// latest of them before the first call is made. When the sender is dropped the last list stays.
    ///
    /// ```
    /// use tokio::sync::watch;
    /// use tower_outbound::call::{Endpoint, Endpoints};
    ///
    /// let (lists, list) = watch::channel(vec![Endpoint::new("http://10.0.0.1:8080")?]);
    /// let orders = Endpoints::from_watch(list);
    /// assert_eq!(orders.len(), 1);
    /// # drop(lists);
    /// # Ok::<(), tower_outbound::call::ConfigError>(())
    /// ```
    pub fn from_watch(mut lists: Receiver<Vec<Endpoint>>) -> Self {
        let first = lists.borrow_and_update().clone();
        Endpoints::from(first).driven_at_once_by(|feeder| async move {
            while lists.changed().await.is_ok() {
                let list = lists.borrow_and_update().clone();
                if !feeder.publish(list) {
                    return;
                }
            }
            tracing::debug!("the sender of endpoints is gone; the last list stays");
        })
    }
}
