//! Servers that are dialed by one name and verified by another.
//!
//! hyper-util pools connections by scheme, host and port. Two endpoints behind one address that are verified by
//! different names must not share a connection, and a connector does not see the request that it connects for. So
//! each name has a client, with a pool, of its own.

use std::sync::Arc;

use arc_swap::ArcSwap;
use http_body::Body;
use hyper_util::client::legacy;
use tower::BoxError;

use super::{builder::Wiring, service::Connecting};
use crate::call::TlsName;

/// How many names have a client at a time. Beyond it the oldest goes; its calls under way are not disturbed.
const MOST: usize = 256;

pub(super) type MakeConnector<C> = dyn Fn(Option<&str>) -> Result<C, BoxError> + Send + Sync;

pub(super) struct TlsNames<C, B> {
    make: Box<MakeConnector<C>>,
    wiring: Wiring,
    /// From the oldest to the newest. Most stacks have one name.
    clients: ArcSwap<Vec<Named<C, B>>>,
}

struct Named<C, B> {
    name: TlsName,
    client: Arc<legacy::Client<Connecting<C>, B>>,
}

impl<C, B> TlsNames<C, B> {
    pub(super) fn new(make: Box<MakeConnector<C>>, wiring: Wiring) -> Self {
        TlsNames {
            make,
            wiring,
            clients: ArcSwap::default(),
        }
    }
}

impl<C, B> TlsNames<C, B>
where
    Connecting<C>: legacy::connect::Connect + Clone,
    B: Body + Send,
    B::Data: Send,
{
    /// The client whose connections are verified by this name.
    pub(super) fn client(&self, name: &TlsName) -> Result<Arc<legacy::Client<Connecting<C>, B>>, BoxError> {
        match find(&self.clients.load(), name) {
            Some(client) => Ok(client),
            None => self.add(name),
        }
    }

    #[cold]
    fn add(&self, name: &TlsName) -> Result<Arc<legacy::Client<Connecting<C>, B>>, BoxError> {
        let connector = (self.make)(Some(name.as_str()))?;
        let client = Arc::new(self.wiring.client(connector));
        // Another call may have come first: then its client is the one.
        self.clients.rcu(|clients| {
            if find(clients, name).is_some() {
                return Arc::clone(clients);
            }
            let kept = clients.len().saturating_sub(MOST - 1);
            let mut clients: Vec<_> = clients.iter().skip(kept).cloned().collect();
            clients.push(Named {
                name: name.clone(),
                client: Arc::clone(&client),
            });
            Arc::new(clients)
        });
        Ok(find(&self.clients.load(), name).unwrap_or(client))
    }
}

fn find<C, B>(clients: &[Named<C, B>], name: &TlsName) -> Option<Arc<legacy::Client<Connecting<C>, B>>> {
    let named = clients.iter().find(|named| named.name == *name)?;
    Some(Arc::clone(&named.client))
}

impl<C, B> Clone for Named<C, B> {
    fn clone(&self) -> Self {
        Named {
            name: self.name.clone(),
            client: Arc::clone(&self.client),
        }
    }
}
