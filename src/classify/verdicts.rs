//! A verdict for each status, in a few dozen bytes.

use std::{fmt, sync::Arc};

use http::StatusCode;

use crate::call::Verdict;

/// How many exceptions are held in place.
const FEW: usize = 8;

/// The verdict on each status: one for each class, and the exceptions.
///
/// Every call takes a copy along. A whole table would be large to move, and sharing one would make all threads
/// count references at one place; so it is shared only where someone has set a great many exceptions.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Verdicts {
    classes: [Verdict; 9],
    exceptions: Exceptions,
}

#[derive(Clone, PartialEq, Eq)]
enum Exceptions {
    Few { list: [Exception; FEW], length: u8 },
    Many(Arc<[Exception]>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Exception {
    status: StatusCode,
    verdict: Verdict,
}

impl Verdicts {
    /// Verdicts by class: 1xx, 2xx, 3xx, 4xx, 5xx and all that are beyond.
    pub(super) const fn by_class(classes: [Verdict; 5], beyond: Verdict) -> Self {
        let [c1, c2, c3, c4, c5] = classes;
        Verdicts {
            classes: [c1, c2, c3, c4, c5, beyond, beyond, beyond, beyond],
            exceptions: Exceptions::NONE,
        }
    }

    #[inline]
    pub(super) fn of(&self, status: StatusCode) -> Verdict {
        self.exceptions
            .list()
            .iter()
            .find(|exception| exception.status == status)
            .map_or_else(|| self.of_class(status), |exception| exception.verdict)
    }

    #[inline]
    fn of_class(&self, status: StatusCode) -> Verdict {
        // A status has three digits and does not begin with a zero.
        self.classes[usize::from(status.as_u16() / 100 - 1)]
    }

    /// Sets the verdict on these statuses.
    pub(super) fn set(&mut self, statuses: impl IntoIterator<Item = StatusCode>, verdict: Verdict) {
        let mut list = self.exceptions.list().to_vec();
        for status in statuses {
            list.retain(|exception| exception.status != status);
            if self.of_class(status) != verdict {
                list.push(Exception { status, verdict });
            }
        }
        // In order, so that policies that say the same are equal.
        list.sort_by_key(|exception| exception.status);
        self.exceptions = Exceptions::new(&list);
    }
}

impl Exceptions {
    const NONE: Exceptions = Exceptions::Few {
        list: [Exception {
            status: StatusCode::OK,
            verdict: Verdict::Success,
        }; FEW],
        length: 0,
    };

    fn new(exceptions: &[Exception]) -> Self {
        match (Exceptions::NONE, u8::try_from(exceptions.len())) {
            (Exceptions::Few { mut list, .. }, Ok(length)) if exceptions.len() <= FEW => {
                for (place, exception) in list.iter_mut().zip(exceptions) {
                    *place = *exception;
                }
                Exceptions::Few { list, length }
            }
            _ => Exceptions::Many(exceptions.into()),
        }
    }

    #[inline]
    fn list(&self) -> &[Exception] {
        match self {
            Exceptions::Few { list, length } => list.get(..usize::from(*length)).unwrap_or(list),
            Exceptions::Many(list) => list,
        }
    }
}

/// As a map: `{1xx: Success, …, 408: Failure}`.
impl fmt::Debug for Verdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (n, verdict) in self.classes.iter().enumerate() {
            map.entry(&format_args!("{}xx", n + 1), verdict);
        }
        for exception in self.exceptions.list() {
            map.entry(&exception.status.as_u16(), &exception.verdict);
        }
        map.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const PLAIN: Verdicts = Verdicts::by_class(
        [
            Verdict::Success,
            Verdict::Success,
            Verdict::Success,
            Verdict::Ignored,
            Verdict::Failure,
        ],
        Verdict::Failure,
    );

    fn all() -> impl Iterator<Item = StatusCode> {
        (100..1000).map(|code| StatusCode::from_u16(code).unwrap())
    }

    fn verdict() -> impl Strategy<Value = Verdict> {
        prop_oneof![
            Just(Verdict::Success),
            Just(Verdict::Failure),
            Just(Verdict::Ignored)
        ]
    }

    proptest! {
        #[test]
        fn the_last_word_on_each_status_counts(words in prop::collection::vec((100_u16..1000, verdict()), 0..40)) {
            let mut expected: BTreeMap<_, _> = all().map(|status| (status, PLAIN.of(status))).collect();
            let mut verdicts = PLAIN;
            for (code, verdict) in words {
                let status = StatusCode::from_u16(code).unwrap();
                expected.insert(status, verdict);
                verdicts.set([status], verdict);
            }
            for (status, verdict) in expected {
                prop_assert_eq!(verdicts.of(status), verdict);
            }
        }
    }

    #[test]
    fn whatever_the_way_to_them_the_same_verdicts_are_equal() {
        let (gone, teapot) = (StatusCode::GONE, StatusCode::IM_A_TEAPOT);
        let (mut one, mut other, mut back) = (PLAIN, PLAIN, PLAIN);
        one.set([gone, teapot], Verdict::Failure);
        other.set([teapot], Verdict::Failure);
        other.set([gone, gone], Verdict::Failure);
        back.set(all(), Verdict::Success);
        back.set(
            all().filter(|status| status.as_u16() / 100 == 4),
            Verdict::Ignored,
        );
        back.set(all().filter(|status| status.as_u16() >= 500), Verdict::Failure);
        assert_eq!(one, other);
        assert_eq!(back, PLAIN);
        assert!(matches!(back.exceptions, Exceptions::Few { length: 0, .. }));
    }

    #[test]
    fn it_is_small_and_reads_as_a_map() {
        assert!(size_of::<Verdicts>() <= 56, "{}", size_of::<Verdicts>());
        let mut verdicts = PLAIN;
        verdicts.set([StatusCode::REQUEST_TIMEOUT], Verdict::Failure);
        let text = format!("{verdicts:?}");
        assert!(text.starts_with("{1xx: Success, 2xx: Success"), "{text}");
        assert!(text.ends_with("9xx: Failure, 408: Failure}"), "{text}");
    }
}
