//! The best of a few.

use super::{
    Ewma,
    draw::{Draw, MOST_CHOICES, draw},
    source::{Seen, Source},
};
use crate::balance::{
    figures::Counters,
    load::{Ages, Cost, Load},
    rule::Candidates,
    subset::{Members, Subset},
};

/// The sixteenth root of next to nothing. Of nothing any number of attempts would cost as little as none.
const LEAST_ROOT: f32 = 0.25;

/// One to the base of 1/e, but for two hundredths, in a few steps.
#[inline]
fn falling(by: f32) -> f32 {
    let root = (1.0 - by * (1.0 / 16.0)).max(LEAST_ROOT);
    let root = root * root;
    let root = root * root;
    let root = root * root;
    root * root
}

/// The best of those that were seen, by what was worked out of their costs.
#[derive(Debug, Clone, Copy)]
struct Best {
    cost: Cost,
    /// When it was seen.
    turn: u32,
    /// The ages of all of those costs.
    ages: Ages,
    next_turn: u32,
}

impl Best {
    const OF_NONE: Best = Best {
        cost: Cost::MOST,
        turn: 0,
        ages: Ages::OF_NONE,
        next_turn: 0,
    };

    /// The best of so far and this one, which is not asked whether it can be had.
    ///
    /// There is no branch on the way. A processor cannot guess how loaded the next one is, and to guess wrong costs more than
    /// all the rest.
    #[inline(always)]
    fn and(self, counters: &Counters, nanos: u64) -> Self {
        let cost = counters.load().cost();
        let is_better = cost < self.cost;
        Best {
            cost: if is_better { cost } else { self.cost },
            turn: if is_better { self.next_turn } else { self.turn },
            ages: self.ages.and(cost, nanos),
            next_turn: self.next_turn + 1,
        }
    }
}

/// All that were drawn.
struct Looked<'a> {
    /// By turn. None: it has gone.
    seen: [Option<Seen<'a>>; MOST_CHOICES],
    best: Best,
    /// Those of all of them.
    vetoes: u64,
}

impl<'a> Looked<'a> {
    /// Of a large set all that is looked at comes from far, and so comes at once.
    #[inline(always)]
    fn at(from: &'a impl Source, draw: &Draw, choices: usize, nanos: u64) -> Self {
        let n = from.len();
        let mut looked = Looked {
            seen: [const { None }; MOST_CHOICES],
            best: Best::OF_NONE,
            vetoes: 0,
        };
        for (turn, place) in looked.seen.iter_mut().enumerate().take(choices) {
            let Some(seen) = from.seen(draw.index(turn, n)) else {
                continue;
            };
            looked.vetoes |= seen.endpoint.eligibility().vetoes();
            looked.best = looked.best.and(seen.counters, nanos);
            *place = Some(seen);
        }
        looked
    }
}

impl Ewma {
    /// The best of some members, if what was worked out of their costs holds, and it can be had.
    #[inline]
    pub(super) fn choose_kept(&self, candidates: &Candidates<'_>, members: &Members) -> Option<usize> {
        if !candidates.tried().is_nothing() {
            return None;
        }
        let (n, nanos) = (members.len(), candidates.nanos());
        let choices = self.settings.choices.min(n);
        let draw = draw(&self.dice, n, choices);
        let best = match &draw {
            Draw::InARow(first) => {
                let members = members.in_a_row(*first, choices).iter();
                members.fold(Best::OF_NONE, |best, member| best.and(member.counters(), nanos))
            }
            Draw::OneOfEachPart(drawn) => {
                let mut best = Best::OF_NONE;
                for &index in drawn.iter().take(choices) {
                    best = best.and(members.get(index as usize)?.counters(), nanos);
                }
                best
            }
        };
        let index = draw.index(best.turn as usize, n);
        let can_be_had = best.ages.all_hold() && members.seen(index)?.is_eligible();
        can_be_had.then_some(index)
    }

    /// The best of a few of these. None: none of those that were drawn can be had.
    #[inline(never)]
    pub(super) fn choose(&self, candidates: &Candidates<'_>, from: &impl Source) -> Option<usize> {
        let (n, nanos) = (from.len(), candidates.nanos());
        let choices = self.settings.choices.min(n);
        let draw = draw(&self.dice, n, choices);
        let looked = Looked::at(from, &draw, choices, nanos);
        let best = looked.best;
        if best.next_turn as usize == choices
            && best.ages.all_hold()
            && looked.vetoes == 0
            && candidates.tried().is_nothing()
        {
            return Some(draw.index(best.turn as usize, n));
        }
        // Each is another case.
        let (mut best, mut found) = (None, 0);
        for (turn, seen) in looked.seen.iter().enumerate().take(choices) {
            let cost = seen.as_ref().and_then(|seen| self.look(candidates, seen));
            let Some(cost) = cost else { continue };
            found += 1;
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, turn));
            }
        }
        let best = best.map(|(cost, turn)| (cost, draw.index(turn, n)));
        if found < choices && choices < n {
            return self.choose_more(candidates, from, choices - found, best);
        }
        best.map(|(_, index)| index)
    }

    /// What one costs, if it can be had.
    #[inline]
    fn look(&self, candidates: &Candidates<'_>, seen: &Seen<'_>) -> Option<Cost> {
        let (load, nanos) = (seen.counters.load(), candidates.nanos());
        let can_be_had = seen.is_eligible() && !candidates.tried().contains(seen.endpoint);
        let cost = match load.cost() {
            kept if kept.holds(nanos) => kept,
            // Where it cannot be had as well: else each pick that draws it would have to look again.
            _ if load.is_known() => self.work_out(load, nanos),
            _ if can_be_had => {
                let cost = self.cost_of_newcomer(candidates, seen) * load.per_weight();
                Cost::new(cost, nanos)
            }
            _ => return None,
        };
        can_be_had.then_some(cost)
    }

    /// What one costs that is known, and has changed with time.
    #[inline]
    fn work_out(&self, load: &Load, nanos: u64) -> Cost {
        let open = load.open(nanos);
        let (estimate, idle) = load.estimate_or_zero(nanos);
        let idle = if open.waiting > 0 {
            0.0
        } else {
            idle * self.per_recovery
        };
        // Nearly nothing at first, and then nearly all.
        let answers = estimate * falling(idle * idle);
        let cost = Cost::new(open.cost(answers) * load.per_weight(), nanos);
        load.keep(cost);
        cost
    }

    /// The best, where some of those that were drawn cannot be had, after as many more have been found.
    #[cold]
    fn choose_more(
        &self,
        candidates: &Candidates<'_>,
        from: &dyn Source,
        missing: usize,
        best: Option<(Cost, usize)>,
    ) -> Option<usize> {
        let more = (0..3 * self.settings.choices).filter_map(|_| {
            let index = self.dice.below(from.len());
            Some((self.look(candidates, &from.seen(index)?)?, index))
        });
        let best = best.into_iter().chain(more.take(missing)).min();
        best.map(|(_, index)| index)
    }

    /// The best of the members that have not gone. It is for the short time until the subset is made anew.
    #[cold]
    pub(super) fn choose_present(
        &self,
        candidates: &Candidates<'_>,
        subset: &Subset,
        members: &Members,
    ) -> Option<usize> {
        let roster = candidates.roster();
        let present = Present {
            subset,
            members,
            candidates,
        };
        let best = self.choose(candidates, &present)?;
        subset.place(members.get(best)?, roster)
    }
}

/// The members that have not gone.
struct Present<'a> {
    subset: &'a Subset,
    members: &'a Members,
    candidates: &'a Candidates<'a>,
}

impl Source for Present<'_> {
    fn len(&self) -> usize {
        self.members.len()
    }

    fn seen(&self, index: usize) -> Option<Seen<'_>> {
        let member = self.members.get(index)?;
        self.subset.place(member, self.candidates.roster())?;
        Some(Seen::member(member))
    }
}
