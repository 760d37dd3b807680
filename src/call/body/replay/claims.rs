//! Who may read a body that is sent more than once, in one word.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire},
};

/// Why a body can be sent no further time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// More of it was read than is kept.
    BeyondCap = 1,
    /// It was read while nobody wanted it to be kept.
    Spent = 2,
    /// Its source failed.
    Failed = 3,
}

/// A reader may read no further: a younger one has begun, or nobody is left to whom the body is of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused;

/// Why a reader cannot begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoBeginning {
    Refused,
    Lost(Loss),
}

/// Where a reader stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Reads,
    Refused,
    /// Nobody is left to whom the body is of use.
    Over,
}

/// Each attempt reads the body through a reader of its own, and they are numbered in the order in which they were
/// made. A reader that begins shuts out all that are older; a younger one that has not begun yet shuts out nobody,
/// for the attempt before may still be under way.
///
/// The body is of use as long as its youngest reader or a kept copy, which can make a further one, is alive.
///
/// All of that and the loss are in one word, so that no two threads can disagree about it: either a reader begins,
/// and from then on an older one can no longer lose anything, or the older one loses it first, and no other begins.
#[derive(Debug)]
pub(super) struct Claims(AtomicU64);

/// The word: three numbers of 20 bits, and below them a flag and the loss.
#[derive(Debug, Clone, Copy)]
struct Word {
    /// The youngest reader.
    youngest: u64,
    /// Readers older than this one are shut out.
    begun: u64,
    /// Copies that are kept.
    copies: u64,
    /// Is the youngest reader alive?
    alive: bool,
    loss: Option<Loss>,
}

const BITS: u32 = 20;
const MOST: u64 = (1 << BITS) - 1;

impl Word {
    fn unpack(word: u64) -> Word {
        Word {
            youngest: word >> (2 * BITS + 3) & MOST,
            begun: word >> (BITS + 3) & MOST,
            copies: word >> 3 & MOST,
            alive: word & 4 != 0,
            loss: match word & 3 {
                0 => None,
                1 => Some(Loss::BeyondCap),
                2 => Some(Loss::Spent),
                _ => Some(Loss::Failed),
            },
        }
    }

    fn pack(self) -> u64 {
        self.youngest << (2 * BITS + 3)
            | self.begun << (BITS + 3)
            | self.copies << 3
            | u64::from(self.alive) << 2
            | self.loss.map_or(0, |loss| loss as u64)
    }

    fn is_over(self) -> bool {
        self.copies == 0 && !self.alive
    }

    fn refuses(self, reader: u64) -> bool {
        reader < self.begun || self.is_over()
    }

    fn is_wanted(self, reader: u64) -> bool {
        self.copies > 0 || self.youngest != reader
    }

    fn begin(&mut self, reader: u64) -> Result<bool, NoBeginning> {
        if self.refuses(reader) {
            return Err(NoBeginning::Refused);
        }
        let first = reader > self.begun;
        if let (true, Some(loss)) = (first, self.loss) {
            return Err(NoBeginning::Lost(loss));
        }
        self.begun = reader;
        Ok(first)
    }
}

impl Claims {
    /// There is one reader, of the number 0.
    pub(super) fn new() -> Self {
        let word = Word {
            youngest: 0,
            begun: 0,
            copies: 0,
            alive: true,
            loss: None,
        };
        Claims(AtomicU64::new(word.pack()))
    }

    fn read(&self) -> Word {
        Word::unpack(self.0.load(Acquire))
    }

    fn change<R>(&self, mut change: impl FnMut(&mut Word) -> R) -> R {
        let mut seen = self.0.load(Acquire);
        loop {
            let mut word = Word::unpack(seen);
            let result = change(&mut word);
            // Even what changes nothing is written, so that who comes later sees what was done before.
            match self.0.compare_exchange_weak(seen, word.pack(), AcqRel, Acquire) {
                Ok(_) => return result,
                Err(now) => seen = now,
            }
        }
    }

    /// A copy is kept. False: there are too many.
    pub(super) fn copy_kept(&self) -> bool {
        self.change(|word| {
            let room = word.copies < MOST;
            word.copies += u64::from(room);
            room
        })
    }

    /// A kept copy is gone. True: the body is of no use any more.
    pub(super) fn copy_dropped(&self) -> bool {
        self.change(|word| {
            word.copies = word.copies.saturating_sub(1);
            word.is_over()
        })
    }

    /// A kept copy makes a further reader. `None`: the body is lost, or there were too many.
    pub(super) fn reader_made(&self) -> Option<u64> {
        self.change(|word| {
            if word.loss.is_some() || word.youngest == MOST {
                return None;
            }
            word.youngest += 1;
            word.alive = true;
            Some(word.youngest)
        })
    }

    /// A reader is gone. True: the body is of no use any more.
    pub(super) fn reader_dropped(&self, reader: u64) -> bool {
        self.change(|word| {
            word.alive &= word.youngest != reader;
            word.is_over()
        })
    }

    /// A reader begins at the beginning. True: it is the first to know.
    pub(super) fn begin(&self, reader: u64) -> Result<bool, NoBeginning> {
        self.change(|word| word.begin(reader))
    }

    /// The youngest reader begins.
    pub(super) fn begin_youngest(&self) -> Result<bool, NoBeginning> {
        self.change(|word| word.begin(word.youngest))
    }

    /// May a reader that has begun read on?
    pub(super) fn reads(&self, reader: u64) -> Result<(), NoBeginning> {
        if self.read().refuses(reader) {
            Err(NoBeginning::Refused)
        } else {
            Ok(())
        }
    }

    /// How it is for a reader after it has read. Who has changed that before, and found it reading, relies on it to
    /// see the change here.
    pub(super) fn standing(&self, reader: u64) -> Standing {
        self.change(|word| {
            if word.is_over() {
                Standing::Over
            } else if word.refuses(reader) {
                Standing::Refused
            } else {
                Standing::Reads
            }
        })
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        self.read().loss
    }

    /// Shall what this reader reads be kept? If nobody wants it, the body is spent by that.
    pub(super) fn keeps(&self, reader: u64) -> bool {
        let word = self.read();
        if word.loss.is_some() {
            return false;
        }
        word.is_wanted(reader)
            || self.change(|word| {
                let wanted = word.is_wanted(reader);
                if !wanted {
                    word.loss = word.loss.or(Some(Loss::Spent));
                }
                wanted
            })
    }

    /// What this reader has read is not kept, so the body is lost. `Err`: a younger reader counts on it.
    pub(super) fn lose(&self, reader: u64, loss: Loss) -> Result<(), Refused> {
        self.change(|word| {
            if reader < word.begun {
                return Err(Refused);
            }
            word.loss = word.loss.or(Some(loss));
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_begins_shuts_out_the_older_ones_and_one_that_waits_nobody() {
        let claims = Claims::new();
        assert_eq!(claims.begin(0), Ok(false));
        assert!(claims.copy_kept());
        assert_eq!(claims.reader_made(), Some(1));
        assert_eq!(claims.standing(0), Standing::Reads);
        assert_eq!(claims.begin_youngest(), Ok(true));
        assert_eq!(claims.begin(1), Ok(false), "it is told once");
        assert_eq!(
            (claims.standing(0), claims.reads(0)),
            (Standing::Refused, Err(NoBeginning::Refused))
        );
        assert_eq!(claims.reader_made(), Some(2));
        assert_eq!(
            (claims.standing(0), claims.standing(1)),
            (Standing::Refused, Standing::Reads)
        );
    }

    #[test]
    fn either_a_reader_begins_or_the_one_before_loses_the_body() {
        let claims = Claims::new();
        assert!(claims.copy_kept());
        assert_eq!(claims.reader_made(), Some(1));
        assert_eq!(claims.lose(0, Loss::BeyondCap), Ok(()));
        assert_eq!(claims.lose(0, Loss::Failed), Ok(()));
        assert_eq!(
            claims.begin(1),
            Err(NoBeginning::Lost(Loss::BeyondCap)),
            "the first one counts"
        );
        assert_eq!(
            (claims.standing(0), claims.reader_made()),
            (Standing::Reads, None)
        );

        let claims = Claims::new();
        assert!(claims.copy_kept());
        assert_eq!(claims.reader_made(), Some(1));
        assert_eq!(claims.begin(1), Ok(true));
        assert_eq!(
            (claims.lose(0, Loss::BeyondCap), claims.loss()),
            (Err(Refused), None)
        );
    }

    #[test]
    fn the_body_is_of_use_as_long_as_the_youngest_reader_or_a_copy_is_alive() {
        let claims = Claims::new();
        assert!(claims.copy_kept());
        assert!(!claims.reader_dropped(0));
        assert_eq!(claims.reader_made(), Some(1));
        assert!(!claims.copy_dropped());
        assert!(!claims.reader_dropped(0), "an older one changes nothing");
        assert!(claims.reader_dropped(1));
        assert_eq!(
            (claims.standing(0), claims.begin(1)),
            (Standing::Over, Err(NoBeginning::Refused))
        );
    }

    #[test]
    fn what_nobody_wants_to_be_kept_is_spent_once_it_is_read() {
        let claims = Claims::new();
        assert!(claims.copy_kept() && claims.keeps(0) && claims.loss().is_none());
        assert_eq!(claims.reader_made(), Some(1));
        assert!(!claims.copy_dropped());
        assert!(claims.keeps(0), "a younger one waits for it");
        assert!(!claims.keeps(1) && !claims.keeps(0));
        assert_eq!(claims.loss(), Some(Loss::Spent));
    }

    #[test]
    fn the_numbers_end_without_wrapping() {
        let word = Word {
            youngest: MOST,
            begun: MOST - 1,
            copies: MOST,
            alive: true,
            loss: Some(Loss::Failed),
        };
        let again = Word::unpack(word.pack());
        assert_eq!(
            (again.youngest, again.begun, again.copies, again.alive, again.loss),
            (MOST, MOST - 1, MOST, true, Some(Loss::Failed))
        );
        let claims = Claims(AtomicU64::new(Word { loss: None, ..word }.pack()));
        assert!(!claims.copy_kept());
        assert_eq!(claims.reader_made(), None);
    }
}
