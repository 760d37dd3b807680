//! One by a closure.

use std::{any, fmt};

use super::{Candidates, Rule};

/// A rule by a closure that may choose none: then the call ends, or waits, as with an [empty set](crate::balance::WhenEmpty).
/// The type of its argument need not be written out.
///
/// What a [`Rule`] is told and asked holds for it: vetoes, and what the call has tried, are seen to by the balancer.
///
/// ```
/// use tower_outbound::balance::{LoadBalanceLayer, rule::from_fn};
/// use tower_outbound::call::Endpoints;
///
/// // The one with the fewest attempts in flight; none, rather than one more than a hundred on any.
/// let with_room = from_fn(|candidates| {
///     let load = candidates.iter().map(|candidate| candidate.in_flight()).enumerate();
///     load.filter(|&(_, load)| load < 100).min_by_key(|&(_, load)| load).map(|(index, _)| index)
/// });
/// let layer = LoadBalanceLayer::new(Endpoints::new()).rule(with_room);
/// # drop(layer);
/// ```
///
/// One that has something to say of the [decay](Rule::decay), or is to [choose alone](Rule::chooses_alone), is a type of its
/// own.
pub fn from_fn<F>(pick: F) -> FromFn<F>
where
    F: Fn(&Candidates<'_>) -> Option<usize>,
{
    FromFn { pick }
}

/// What [`from_fn`] makes.
#[derive(Clone, Copy)]
pub struct FromFn<F> {
    pick: F,
}

impl<F> Rule for FromFn<F>
where
    F: Fn(&Candidates<'_>) -> Option<usize>,
{
    #[inline]
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        (self.pick)(candidates)
    }
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromFn")
            .field("pick", &any::type_name::<F>())
            .finish()
    }
}
