//! Round robin outside of bad zones.

use super::{
    super::{Candidates, Rule, dice::Dice},
    is_allowed, is_available,
    position::Position,
    zones::Survey,
};

/// Round robin among the endpoints that are neither in a bad zone, nor tripped, nor full (Ribbon's `ZoneAvoidanceRule`,
/// which Spring has if nothing else is said).
///
/// It begins with the first endpoint. Its place counts those that are left after filtering: when that list changes, the
/// rotation goes on from the same place of another list.
///
/// A zone is bad if all its endpoints are tripped. If there is such a zone, or if the load of a zone (attempts in flight
/// per endpoint that is not tripped) is 0.2 or more, the one with the greatest load is bad as well; by lot, if it is
/// several. With two zones that may leave none. If nothing is left, zones are no longer looked at; if still nothing is
/// left, all endpoints may be picked. Endpoints without a zone are not left out for their zone. The thresholds:
/// [`RibbonStats`](super::super::super::RibbonStats).
///
/// Spring has the choice of a zone before this: [`ZoneAware`](super::ZoneAware). A veto by a
/// [probe](crate::call::Veto::Probe) is not looked at. It looks at all endpoints for each pick.
#[derive(Debug, Default)]
pub struct ZoneAvoidance {
    position: Position,
    dice: Dice,
}

impl ZoneAvoidance {
    /// Begins with the first endpoint.
    pub fn new() -> Self {
        ZoneAvoidance::default()
    }

    /// With a lot that this seed determines, for tests.
    pub fn seeded(seed: u64) -> Self {
        ZoneAvoidance {
            dice: Dice::seeded(seed),
            ..ZoneAvoidance::default()
        }
    }
}

impl Rule for ZoneAvoidance {
    fn pick(&self, candidates: &Candidates<'_>) -> Option<usize> {
        let in_good_zone = Survey::of(candidates, &self.dice)
            .filter(Survey::has_dropped)
            .and_then(|survey| {
                self.position.among(candidates, |candidate| {
                    let good = candidate.endpoint().zone().is_none() || !survey.is_dropped(candidate.zone());
                    good && is_available(candidate)
                })
            });
        in_good_zone
            .or_else(|| self.position.among(candidates, is_available))
            .or_else(|| self.position.among(candidates, is_allowed))
            .or_else(|| self.position.among(candidates, |_| true))
    }

    fn chooses_alone(&self) -> bool {
        true
    }
}
