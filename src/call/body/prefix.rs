//! The beginning of a body, kept.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BufMut, Bytes};
use http_body::Body;
use pin_project_lite::pin_project;

/// How many frames are taken in one poll. A body that is always ready must let the thread, and the timers of the
/// layers around it, have a turn.
const FRAMES_A_POLL: usize = 32;

/// The most that is set aside because a peer has said how long its body is. More is when more has come.
const MOST_ON_TRUST: u64 = 16 * 1024;

pin_project! {
    /// Reads a body up to a bound and keeps what it has read, as a copy, so that no more memory than that is held.
    ///
    /// It ends when the body ends, breaks off, or turns out to be longer than the bound, and has dropped the body by
    /// then. Trailers are passed over. With a bound of zero the body is dropped unread.
    #[derive(Debug)]
    pub(crate) struct Prefix<B> {
        #[pin]
        body: Option<B>,
        kept: Vec<u8>,
        bound: usize,
    }
}

/// What was kept of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) bytes: Bytes,
    /// Is it the whole body?
    pub(crate) complete: bool,
}

impl<B: Body> Prefix<B> {
    pub(crate) fn new(body: B, bound: usize) -> Self {
        // The cast loses nothing, as the number is small.
        let expected = body.size_hint().lower().min(MOST_ON_TRUST) as usize;
        Prefix {
            kept: Vec::with_capacity(expected.min(bound)),
            body: Some(body),
            bound,
        }
    }

    /// Reads no further: drops the body, and gives what was kept so far.
    pub(crate) fn cut(self: Pin<&mut Self>) -> Kept {
        self.end(false)
    }

    fn end(self: Pin<&mut Self>, complete: bool) -> Kept {
        let mut this = self.project();
        this.body.set(None);
        Kept {
            bytes: Bytes::from(std::mem::take(this.kept)),
            complete,
        }
    }

    /// One step. Ready: the body is read as far as it will be, and that is all of it, or not.
    fn step(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<bool>> {
        let this = self.project();
        let Some(body) = this.body.as_pin_mut() else {
            return Poll::Ready(Some(false));
        };
        if body.is_end_stream() {
            return Poll::Ready(Some(true));
        }
        let room = this.bound.saturating_sub(this.kept.len());
        // A full buffer is still the whole body if nothing but the end follows.
        if room == 0 && (*this.bound == 0 || body.size_hint().lower() > 0) {
            return Poll::Ready(Some(false));
        }
        Poll::Ready(match ready!(body.poll_frame(cx)) {
            None => Some(true),
            Some(Err(_)) => Some(false),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(mut data) => {
                    this.kept.put((&mut data).take(room));
                    data.has_remaining().then_some(false)
                }
                Err(_trailers) => None,
            },
        })
    }
}

impl<B: Body> Future for Prefix<B> {
    type Output = Kept;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Kept> {
        for _ in 0..FRAMES_A_POLL {
            if let Some(complete) = ready!(self.as_mut().step(cx)) {
                return Poll::Ready(self.end(complete));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        io,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use http::HeaderMap;
    use http_body::{Frame, SizeHint};
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    /// What a body does at each poll, and how often it was polled and dropped.
    struct Script {
        steps: VecDeque<Step>,
        says_length: bool,
        says_end: bool,
        polls: Arc<AtomicUsize>,
        drops: Arc<AtomicUsize>,
    }

    enum Step {
        Data(&'static [u8]),
        Trailers,
        Pending,
        Error,
        EmptyForEver,
    }

    impl Script {
        fn new(steps: impl IntoIterator<Item = Step>) -> Self {
            Script {
                steps: steps.into_iter().collect(),
                says_length: false,
                says_end: false,
                polls: Arc::default(),
                drops: Arc::default(),
            }
        }
    }

    impl Drop for Script {
        fn drop(&mut self) {
            self.drops.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Body for Script {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
            self.polls.fetch_add(1, Ordering::Relaxed);
            let Some(step) = self.steps.pop_front() else {
                return Poll::Ready(None);
            };
            match step {
                Step::Data(data) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(data))))),
                Step::Trailers => Poll::Ready(Some(Ok(Frame::trailers(HeaderMap::new())))),
                Step::Error => Poll::Ready(Some(Err(io::ErrorKind::ConnectionReset.into()))),
                Step::Pending => Poll::Pending,
                Step::EmptyForEver => {
                    self.steps.push_front(Step::EmptyForEver);
                    Poll::Ready(Some(Ok(Frame::data(Bytes::new()))))
                }
            }
        }

        fn is_end_stream(&self) -> bool {
            self.says_end && self.steps.is_empty()
        }

        fn size_hint(&self) -> SizeHint {
            let length: usize = self
                .steps
                .iter()
                .map(|step| {
                    if let Step::Data(data) = step {
                        data.len()
                    } else {
                        0
                    }
                })
                .sum();
            if self.says_length {
                SizeHint::with_exact(length as u64)
            } else {
                SizeHint::default()
            }
        }
    }

    fn read(script: Script, bound: usize) -> (&'static str, bool, usize) {
        let (polls, drops) = (script.polls.clone(), script.drops.clone());
        let mut prefix = task::spawn(Prefix::new(script, bound));
        let kept = assert_ready!(prefix.poll());
        assert_eq!(drops.load(Ordering::Relaxed), 1, "the body is gone by the end");
        let text = String::from_utf8(kept.bytes.to_vec()).unwrap().leak();
        (text, kept.complete, polls.load(Ordering::Relaxed))
    }

    #[test]
    fn a_body_up_to_the_bound_is_complete_and_a_byte_more_is_not() {
        let body = || Script::new([Step::Data(b"abc"), Step::Data(b"def")]);
        assert_eq!(read(body(), 7), ("abcdef", true, 3));
        assert_eq!(read(body(), 6), ("abcdef", true, 3), "one look shows the end");
        assert_eq!(read(body(), 5), ("abcde", false, 2));
        assert_eq!(read(body(), 3), ("abc", false, 2));
        assert_eq!(read(body(), 0), ("", false, 0), "dropped unread");
    }

    #[test]
    fn a_known_length_or_end_saves_the_last_look() {
        let body = |says_length, says_end| {
            let mut script = Script::new([Step::Data(b"abc"), Step::Data(b"def")]);
            (script.says_length, script.says_end) = (says_length, says_end);
            script
        };
        assert_eq!(read(body(true, false), 3), ("abc", false, 1));
        assert_eq!(read(body(false, true), 6), ("abcdef", true, 2));
        let mut empty = Script::new([]);
        empty.says_end = true;
        assert_eq!(read(empty, 0), ("", true, 0));
    }

    #[test]
    fn trailers_and_empty_frames_are_passed_over() {
        let script = Script::new([
            Step::Data(b""),
            Step::Data(b"abc"),
            Step::Data(b""),
            Step::Trailers,
        ]);
        assert_eq!(read(script, 3), ("abc", true, 5));
    }

    #[test]
    fn a_body_that_breaks_off_keeps_what_came() {
        assert_eq!(
            read(Script::new([Step::Data(b"abc"), Step::Error]), 9),
            ("abc", false, 2)
        );
        assert_eq!(read(Script::new([Step::Error]), 9), ("", false, 1));
    }

    #[test]
    fn a_stalled_body_can_be_cut_and_is_dropped_then() {
        let script = Script::new([Step::Data(b"abc"), Step::Pending]);
        let drops = script.drops.clone();
        let mut prefix = task::spawn(Prefix::new(script, 9));
        assert_pending!(prefix.poll());
        assert_eq!(drops.load(Ordering::Relaxed), 0);
        let kept = prefix.enter(|_, prefix| prefix.cut());
        assert_eq!((&kept.bytes[..], kept.complete), (&b"abc"[..], false));
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_body_that_is_always_ready_does_not_hold_the_thread() {
        let mut prefix = task::spawn(Prefix::new(Script::new([Step::EmptyForEver]), 9));
        assert_pending!(prefix.poll());
        assert!(prefix.is_woken(), "it asks for another turn");
    }

    #[test]
    fn a_promised_length_is_not_taken_on_trust() {
        struct Promise;
        impl Body for Promise {
            type Data = Bytes;
            type Error = io::Error;
            fn poll_frame(
                self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
                Poll::Pending
            }
            fn size_hint(&self) -> SizeHint {
                SizeHint::with_exact(u64::MAX)
            }
        }
        assert!(Prefix::new(Promise, usize::MAX).kept.capacity() as u64 <= MOST_ON_TRUST);
        assert!(Prefix::new(Promise, 7).kept.capacity() <= 7);
    }
}
