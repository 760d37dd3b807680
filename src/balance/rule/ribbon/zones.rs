//! Which zones are fit to be picked from.

use super::super::{Candidates, dice::Dice};

/// Most have no more, and then nothing is allocated.
const FEW: usize = 8;

/// One look at all candidates.
pub(super) struct Survey {
    few: [Zone; FEW],
    /// Empty, unless there are more than a few.
    many: Vec<Zone>,
    len: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Zone {
    servers: usize,
    tripped: usize,
    /// Attempts in flight to those that are not tripped.
    active: u64,
    is_worst: bool,
    is_dropped: bool,
}

impl Zone {
    /// Attempts in flight per server that is not tripped. None: all are.
    fn load(&self) -> Option<f64> {
        match self.servers - self.tripped {
            0 => None,
            rest => Some(self.active as f64 / rest as f64),
        }
    }
}

impl Survey {
    /// None: there are not two zones to choose from.
    pub(super) fn of(candidates: &Candidates<'_>, dice: &Dice) -> Option<Survey> {
        let len = candidates.zones().len();
        if len < 2 {
            return None;
        }
        let mut survey = Survey {
            few: [Zone::default(); FEW],
            many: if len > FEW {
                vec![Zone::default(); len]
            } else {
                Vec::new()
            },
            len,
        };
        for candidate in candidates.iter() {
            if let Some(zone) = survey.zones_mut().get_mut(candidate.zone()) {
                zone.servers += 1;
                if candidate.is_tripped() {
                    zone.tripped += 1;
                } else {
                    zone.active += candidate.active();
                }
            }
        }
        if survey.zones().iter().filter(|zone| zone.servers > 0).count() < 2 {
            return None;
        }
        let (load, blackout) = candidates.zone_limits();
        survey.drop_bad(load, blackout, dice);
        Some(survey)
    }

    /// A zone that is tripped as a whole goes. Then, if one has gone or one is loaded, the most loaded one of the others
    /// goes as well; by lot, if several are.
    fn drop_bad(&mut self, limit: f64, blackout: f64, dice: &Dice) {
        let mut most = 0.0;
        let mut one_has_gone = false;
        for index in 0..self.len {
            let zones = self.zones_mut();
            let Some(zone) = zones.get_mut(index).filter(|zone| zone.servers > 0) else {
                continue;
            };
            let tripped = zone.tripped as f64 / zone.servers as f64;
            match zone.load().filter(|_| tripped < blackout) {
                None => {
                    zone.is_dropped = true;
                    one_has_gone = true;
                }
                Some(load) if (load - most).abs() < 0.000_001 => zone.is_worst = true,
                Some(load) if load > most => {
                    most = load;
                    zones.iter_mut().for_each(|zone| zone.is_worst = false);
                    if let Some(zone) = zones.get_mut(index) {
                        zone.is_worst = true;
                    }
                }
                Some(_) => {}
            }
        }
        if most < limit && !one_has_gone {
            return;
        }
        let worst = self.draw(dice, |zone| zone.is_worst);
        if let Some(zone) = worst.and_then(|worst| self.zones_mut().get_mut(worst)) {
            zone.is_dropped = true;
        }
    }

    /// Has a zone been dropped?
    pub(super) fn has_dropped(&self) -> bool {
        self.zones().iter().any(|zone| zone.is_dropped)
    }

    pub(super) fn is_dropped(&self, zone: usize) -> bool {
        self.zones().get(zone).is_some_and(|zone| zone.is_dropped)
    }

    /// One of those that are left, by the number of their servers. None: there is none.
    pub(super) fn draw_one_left(&self, dice: &Dice) -> Option<usize> {
        self.draw(dice, |zone| !zone.is_dropped)
    }

    fn draw(&self, dice: &Dice, wanted: impl Fn(&Zone) -> bool) -> Option<usize> {
        let wanted = || {
            let zones = self.zones().iter().enumerate();
            zones.filter(|(_, zone)| wanted(zone) && zone.servers > 0)
        };
        let only = {
            let mut zones = wanted();
            let (first, _) = zones.next()?;
            zones.next().is_none().then_some(first)
        };
        if only.is_some() {
            return only;
        }
        let servers = wanted().map(|(_, zone)| zone.servers).sum();
        let mut left = dice.below(servers);
        for (index, zone) in wanted() {
            if left < zone.servers {
                return Some(index);
            }
            left -= zone.servers;
        }
        None
    }

    fn zones(&self) -> &[Zone] {
        if self.many.is_empty() {
            self.few.get(..self.len).unwrap_or_default()
        } else {
            &self.many
        }
    }

    fn zones_mut(&mut self) -> &mut [Zone] {
        if self.many.is_empty() {
            self.few.get_mut(..self.len).unwrap_or_default()
        } else {
            &mut self.many
        }
    }
}
