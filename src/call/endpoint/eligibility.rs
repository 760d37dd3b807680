//! May an endpoint be picked?

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Who keeps an endpoint from being picked. Each has a veto of its own, so that none takes back another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Veto {
    /// A circuit breaker of this endpoint.
    Breaker,
    /// A probe that asks the endpoint whether it is well.
    Probe,
    /// A comparison with its peers.
    Outlier,
    /// The endpoint is being taken out of service. Where all have a veto, and vetoes are disregarded, it still comes last.
    Drain,
    /// The user's own reason.
    User,
    /// Its service was asked for readiness and was not ready, or failed. A balancer over a set of services puts it on,
    /// and takes it back by itself.
    NotReady,
}

/// The live cell of an endpoint that health checks write and balancers read.
#[derive(Debug, Default)]
pub struct Eligibility {
    /// A bit for each veto. Above them is how many drains of the endpoint are under way, and in the upper half how many
    /// balancers have ejected it: there may be several over one set, and each has a veto of its own, all of them
    /// [`Veto::Drain`] or [`Veto::Outlier`].
    vetoes: AtomicU64,
}

const DRAINED: u64 = 1 << 16;
const DRAINS: u64 = 0xffff << 16;
const EJECTED: u64 = 1 << 32;
const EJECTIONS: u64 = u64::MAX << 32;

impl Eligibility {
    /// Keeps the endpoint from being picked until this veto is taken back.
    pub fn forbid(&self, veto: Veto) {
        self.vetoes.fetch_or(bit(veto), Relaxed);
    }

    /// Takes this veto back.
    pub fn allow(&self, veto: Veto) {
        self.vetoes.fetch_and(!bit(veto), Relaxed);
    }

    /// Is there no veto?
    #[inline]
    pub fn is_eligible(&self) -> bool {
        self.vetoes() == 0
    }

    /// Zero: there is none.
    #[allow(dead_code, reason = "read by a layer that is a feature")]
    #[inline(always)]
    pub(crate) fn vetoes(&self) -> u64 {
        self.vetoes.load(Relaxed)
    }

    /// Is there no veto but, perhaps, this one?
    pub fn is_eligible_apart_from(&self, veto: Veto) -> bool {
        self.vetoes.load(Relaxed) & !bits(veto) == 0
    }

    /// Does this veto stand?
    pub fn is_forbidden_by(&self, veto: Veto) -> bool {
        self.vetoes.load(Relaxed) & bits(veto) != 0
    }
}

#[allow(dead_code, reason = "used by a layer that is a feature")]
impl Eligibility {
    /// One more balancer ejects it, and will [readmit](Eligibility::readmit) it.
    pub(crate) fn eject(&self) {
        self.vetoes.fetch_add(EJECTED, Relaxed);
    }

    /// One balancer less ejects it.
    pub(crate) fn readmit(&self) {
        self.vetoes.fetch_sub(EJECTED, Relaxed);
    }

    /// One more drain of it begins, and will [end](Eligibility::end_drain).
    pub(crate) fn begin_drain(&self) {
        self.vetoes.fetch_add(DRAINED, Relaxed);
    }

    /// One drain less is under way.
    pub(crate) fn end_drain(&self) {
        self.vetoes.fetch_sub(DRAINED, Relaxed);
    }

    /// Does any balancer eject it?
    pub(crate) fn is_ejected(&self) -> bool {
        self.vetoes.load(Relaxed) & EJECTIONS != 0
    }
}

const fn bit(veto: Veto) -> u64 {
    1 << veto as u64
}

/// Where it shows that this veto stands.
const fn bits(veto: Veto) -> u64 {
    match veto {
        Veto::Drain => bit(veto) | DRAINS,
        Veto::Outlier => bit(veto) | EJECTIONS,
        _ => bit(veto),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_eligible_when_the_last_veto_is_taken_back() {
        let cell = Eligibility::default();
        cell.forbid(Veto::Breaker);
        cell.forbid(Veto::Breaker);
        cell.forbid(Veto::Drain);
        cell.allow(Veto::Breaker);
        assert!(
            !cell.is_eligible() && !cell.is_forbidden_by(Veto::Breaker) && cell.is_forbidden_by(Veto::Drain)
        );
        assert!(cell.is_eligible_apart_from(Veto::Drain) && !cell.is_eligible_apart_from(Veto::Breaker));
        cell.allow(Veto::Drain);
        assert!(cell.is_eligible());
    }

    #[test]
    fn each_balancer_that_ejects_an_endpoint_takes_back_its_own_veto_alone() {
        let cell = Eligibility::default();
        cell.eject();
        cell.eject();
        cell.forbid(Veto::Outlier);
        cell.readmit();
        assert!(cell.is_forbidden_by(Veto::Outlier) && cell.is_ejected());
        assert!(cell.is_eligible_apart_from(Veto::Outlier) && !cell.is_eligible_apart_from(Veto::Probe));
        cell.allow(Veto::Outlier);
        assert!(cell.is_forbidden_by(Veto::Outlier) && !cell.is_eligible());
        cell.readmit();
        assert!(cell.is_eligible() && !cell.is_forbidden_by(Veto::Outlier) && !cell.is_ejected());
    }
}
