//! The best of a few.

use super::{
    Ewma,
    draw::{FOUR, Fours, MOST_CHOICES, draw},
    source::{Seen, Source},
    subset::{Members, Subset},
};
use crate::balance::{
    load::{Look, Looks},
    rule::Candidates,
};

/// What an endpoint costs, and the turn in which it was drawn in the last bits: numbers that are not negative are in the order
/// of their bits, so that the least of several of these is the best, and of equal ones the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank(i32);

const LAST_TURN: i32 = MOST_CHOICES as i32 - 1;

impl Rank {
    const NONE: Rank = Rank(i32::MAX);

    /// None, if there are no more than so many choices.
    #[inline(always)]
    fn new(cost: f32, turn: i32, choices: i32) -> Self {
        let rank = cost.to_bits() as i32 & !LAST_TURN | turn;
        let is_beyond = (choices - 1 - turn) >> 31;
        Rank(rank | is_beyond & i32::MAX)
    }

    #[inline(always)]
    fn turn(self) -> usize {
        (self.0 & LAST_TURN) as usize
    }
}

/// Looks at four of them. The oddity stays zero unless one of them is another case, whose cost says nothing.
#[inline(always)]
fn look(drawn: &[u32; FOUR], nanos: u64, from: &impl Source, oddity: &mut u64) -> Option<Looks> {
    let [a, b, c, d] = *drawn;
    let seen = |index: u32| from.seen(index as usize);
    let (a, b, c, d) = (seen(a)?, seen(b)?, seen(c)?, seen(d)?);
    *oddity |= a.oddity() | b.oddity() | c.oddity() | d.oddity();
    let looks = [a.look(nanos), b.look(nanos), c.look(nanos), d.look(nanos)];
    Some(Looks::of(looks))
}

/// So many attempts, and one more, after one another.
#[inline(always)]
pub(super) fn cost(answers: f32, age: f32, count: f32) -> f32 {
    // As a step of the processor; neither is no number.
    let longer = if answers > age { answers } else { age };
    longer * (count + 1.0)
}

/// The sixteenth root of next to nothing. Of nothing any number of attempts would cost as little as none.
const LEAST_ROOT: f32 = 0.25;

/// One to the base of 1/e, but for two hundredths, in a few steps.
#[inline(always)]
fn falling(by: f32) -> f32 {
    let root = 1.0 - by * (1.0 / 16.0);
    let root = if root > LEAST_ROOT { root } else { LEAST_ROOT };
    let root = root * root;
    let root = root * root;
    let root = root * root;
    root * root
}

impl Ewma {
    /// The best of a few of these. None: none of those that were drawn can be had.
    #[inline(always)]
    pub(super) fn choose(&self, candidates: &Candidates<'_>, from: &impl Source) -> Option<usize> {
        let (nanos, choices) = (candidates.nanos(), self.settings.choices.min(from.len()));
        let drawn = draw(&self.dice, from.len(), choices);
        // All this goes through without a branch. A processor cannot guess how loaded the next one is, and to guess wrong
        // costs more than all the rest.
        let mut oddity = 0;
        let mut look = |before: usize, drawn| match before {
            before if before < choices => look(drawn, nanos, from, &mut oddity),
            _ => Some(Looks::default()),
        };
        let [a, b, c, d] = &drawn;
        let looks = [
            look(0, a)?,
            look(FOUR, b)?,
            look(2 * FOUR, c)?,
            look(3 * FOUR, d)?,
        ];
        let mut ranks = [[Rank::NONE; FOUR]; FOUR];
        let mut turns = [0, 1, 2, 3];
        for (looks, ranks) in looks.iter().zip(&mut ranks).take(choices.div_ceil(FOUR)) {
            *ranks = self.ranks(looks.each(), turns, choices as i32);
            turns = turns.map(|turn| turn + FOUR as i32);
        }
        if oddity != 0 || !candidates.tried().is_nothing() {
            return self.choose_among_others(candidates, from, &drawn, Some(&ranks));
        }
        let best = ranks
            .as_flattened()
            .iter()
            .fold(Rank::NONE, |best, &rank| best.min(rank));
        let index = drawn.as_flattened().get(best.turn())?;
        Some(*index as usize)
    }

    /// Of four, in these turns.
    #[inline(always)]
    fn ranks(&self, [a, b, c, d]: [Look; FOUR], [e, f, g, h]: [i32; FOUR], choices: i32) -> [Rank; FOUR] {
        [
            Rank::new(self.cost(a), e, choices),
            Rank::new(self.cost(b), f, choices),
            Rank::new(self.cost(c), g, choices),
            Rank::new(self.cost(d), h, choices),
        ]
    }

    /// When an attempt that is sent there now is likely to be answered, in seconds and by weight, if it is known.
    #[inline(always)]
    fn cost(&self, look: Look) -> f32 {
        // Nearly nothing at first, and then nearly all.
        let idle = look.idle_unless_waiting() * self.per_recovery;
        cost(look.estimate() * falling(idle * idle), look.age(), look.count()) * look.per_weight()
    }

    /// The same where some may not be picked, or are new. `ranks`: those of the usual ones, if they are known.
    #[cold]
    fn choose_among_others(
        &self,
        candidates: &Candidates<'_>,
        from: &dyn Source,
        drawn: &Fours<u32>,
        ranks: Option<&Fours<Rank>>,
    ) -> Option<usize> {
        let (n, nanos, tried) = (from.len(), candidates.nanos(), candidates.tried());
        let choices = self.settings.choices.min(n);
        let look = |turn: usize, index: u32| {
            let seen = from.seen(index as usize)?;
            if !seen.endpoint.eligibility().is_eligible() || tried.contains(seen.endpoint) {
                return None;
            }
            let cost = if seen.counters.load().is_known() {
                self.cost(seen.look(nanos))
            } else {
                self.cost_of_newcomer(candidates, &seen) * seen.per_weight
            };
            // As exact as those of the usual ones: else a new one would lose where costs are the same.
            Some((Rank::new(cost, turn as i32, MOST_CHOICES as i32), index))
        };
        let usual = |turn: usize, index: u32| {
            let ranks = ranks.filter(|_| tried.is_nothing())?;
            let is_usual = from.seen(index as usize)?.oddity() == 0;
            let &rank = ranks.as_flattened().get(turn)?;
            is_usual.then_some((rank, index))
        };
        let mut best = (Rank::NONE, 0);
        let mut missing = 0;
        for (turn, &index) in drawn.as_flattened().iter().enumerate().take(choices) {
            match usual(turn, index).or_else(|| look(turn, index)) {
                Some(one) => best = best.min(one),
                None => missing += 1,
            }
        }
        if missing > 0 && choices < n {
            let draws = 0..3 * choices;
            let found = draws
                .filter_map(|_| look(MOST_CHOICES - 1, self.dice.below(n) as u32))
                .take(missing);
            best = found.fold(best, Ord::min);
        }
        let (rank, index) = best;
        (rank != Rank::NONE).then_some(index as usize)
    }

    /// The best of the members that have not gone. It is for the short time until the subset is made anew.
    #[cold]
    pub(super) fn choose_present(
        &self,
        candidates: &Candidates<'_>,
        subset: &Subset,
        members: Members<'_>,
    ) -> Option<usize> {
        let roster = candidates.roster();
        let present = Present {
            subset,
            members,
            candidates,
        };
        let drawn = draw(
            &self.dice,
            members.len(),
            self.settings.choices.min(members.len()),
        );
        let best = self.choose_among_others(candidates, &present, &drawn, None)?;
        subset.place(members.get(best)?, roster)
    }
}

/// The members that have not gone.
struct Present<'a> {
    subset: &'a Subset,
    members: Members<'a>,
    candidates: &'a Candidates<'a>,
}

impl Source for Present<'_> {
    fn len(&self) -> usize {
        self.members.len()
    }

    fn seen(&self, index: usize) -> Option<Seen<'_>> {
        let member = self.members.get(index)?;
        self.subset.place(member, self.candidates.roster())?;
        Some(member.seen())
    }
}
