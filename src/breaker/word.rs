//! State, mode, generation and time in one `u64`.

use std::fmt;

use crate::call::CircuitState;

/// The states of the machine below any force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Closed,
    /// Until the sleep window, counted from the word's time, has ended; after it, until a call takes the probe.
    Open,
    /// Half-open, and the probe is out since the word's time.
    Probing,
    /// Half-open, and the probe was handed back: the next call is a probe.
    Vacant,
}

/// `state: 2 | mode: 3 | generation: 16 | milliseconds: 43`, from the top.
///
/// The **generation** counts the windows: it goes up whenever the circuit closes or is reset, which empties the
/// window without touching it, as buckets carry their generation.
///
/// The **time** is when this state began, in milliseconds since the breaker was built, rounded up, so that nothing
/// that is counted from it ends too early.
///
/// All but the mode make up the *stretch*. A permit keeps the word that it was admitted under and counts only as
/// long as the stretch lasts. No two stretches that a living permit could confuse are equal: a closed one has a
/// generation of its own, and a probe is replaced by another only after it was consumed or, at least a
/// millisecond later, when its lease has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

const TIME: u32 = 43;
const GENERATION: u32 = 16;
const MODE_AT: u32 = TIME + GENERATION;
const STATE_AT: u32 = 62;

const TIME_MASK: u64 = (1 << TIME) - 1;
const MODE_MASK: u64 = 0b111 << MODE_AT;

/// Mode: all calls are rejected.
pub(super) const FORCED_OPEN: u64 = 1 << MODE_AT;
/// Mode: no call is rejected, all are counted.
pub(super) const FORCED_CLOSED: u64 = 1 << (MODE_AT + 1);
/// Mode: no call is rejected or counted. Wins over both others.
pub(super) const DISABLED: u64 = 1 << (MODE_AT + 2);

impl Word {
    pub(super) fn new(state: State, generation: u16, time: u64, mode: u64) -> Word {
        let state: u64 = match state {
            State::Closed => 0,
            State::Open => 1,
            State::Probing => 2,
            State::Vacant => 3,
        };
        Word(state << STATE_AT | mode & MODE_MASK | u64::from(generation) << TIME | time.min(TIME_MASK))
    }

    #[inline]
    pub(super) fn state(self) -> State {
        match self.0 >> STATE_AT {
            0 => State::Closed,
            1 => State::Open,
            2 => State::Probing,
            _ => State::Vacant,
        }
    }

    #[inline]
    pub(super) fn generation(self) -> u16 {
        (self.0 >> TIME) as u16
    }

    #[inline]
    pub(super) fn time(self) -> u64 {
        self.0 & TIME_MASK
    }

    pub(super) fn mode(self) -> u64 {
        self.0 & MODE_MASK
    }

    #[inline]
    pub(super) fn is(self, mode: u64) -> bool {
        self.0 & mode != 0
    }

    pub(super) fn with_mode(self, mode: u64) -> Word {
        Word(self.0 & !MODE_MASK | mode & MODE_MASK)
    }

    /// Closed, and neither forced nor disabled: the way that almost every call takes.
    #[inline]
    pub(super) fn is_plainly_closed(self) -> bool {
        self.0 >> MODE_AT == 0
    }

    #[inline]
    pub(super) fn is_same_stretch(self, other: Word) -> bool {
        (self.0 ^ other.0) & !MODE_MASK == 0
    }

    /// Was the call that was admitted under this word the probe? Calls that a force lets past are not.
    #[inline]
    pub(super) fn is_probe(self) -> bool {
        self.0 >> MODE_AT == 2 << (STATE_AT - MODE_AT)
    }

    /// Was the call that was admitted under this word let through by an open circuit that has no half-open state?
    pub(super) fn is_test(self) -> bool {
        self.0 >> MODE_AT == 1 << (STATE_AT - MODE_AT)
    }

    /// The state as told to people; an open circuit is open here even when its sleep window has ended.
    pub(super) fn visible(self) -> CircuitState {
        if self.is(DISABLED) {
            CircuitState::Disabled
        } else if self.is(FORCED_OPEN) {
            CircuitState::ForcedOpen
        } else if self.is(FORCED_CLOSED) {
            CircuitState::ForcedClosed
        } else {
            match self.state() {
                State::Closed => CircuitState::Closed,
                State::Open => CircuitState::Open,
                State::Probing | State::Vacant => CircuitState::HalfOpen,
            }
        }
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Word")
            .field("visible", &self.visible())
            .field("state", &self.state())
            .field("generation", &self.generation())
            .field("time", &self.time())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_and_no_field_spills_into_another() {
        for state in [State::Closed, State::Open, State::Probing, State::Vacant] {
            for generation in [0, 1, u16::MAX] {
                for (time, kept) in [(0, 0), (7, 7), (TIME_MASK, TIME_MASK), (u64::MAX, TIME_MASK)] {
                    for mode in [0, FORCED_OPEN, FORCED_CLOSED, DISABLED] {
                        let word = Word::new(state, generation, time, mode);
                        assert_eq!(
                            (word.state(), word.generation(), word.time(), word.mode()),
                            (state, generation, kept, mode)
                        );
                        assert!(word.is_same_stretch(word.with_mode(DISABLED)));
                        assert_eq!(word.is_plainly_closed(), state == State::Closed && mode == 0);
                        assert_eq!(word.is_probe(), state == State::Probing && mode == 0);
                        assert_eq!(word.is_test(), state == State::Open && mode == 0);
                    }
                }
            }
        }
    }

    #[test]
    fn a_switched_off_breaker_is_off_whatever_is_forced_and_forced_open_wins_over_forced_closed() {
        let word = Word::new(State::Open, 3, 9, FORCED_OPEN | FORCED_CLOSED | DISABLED);
        assert_eq!(word.visible(), CircuitState::Disabled);
        let word = word.with_mode(FORCED_OPEN | FORCED_CLOSED);
        assert_eq!(word.visible(), CircuitState::ForcedOpen);
        assert_eq!(
            word.with_mode(FORCED_CLOSED).visible(),
            CircuitState::ForcedClosed
        );
        assert_eq!(word.with_mode(0).visible(), CircuitState::Open);
    }
}
