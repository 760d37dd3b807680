//! Emptying a body that nobody will read.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Buf;
use http_body::Body;
use pin_project_lite::pin_project;

pin_project! {
    /// Reads a body to its end and throws it away, so that the connection below can serve the next request.
    ///
    /// An HTTP/1 connection whose answer was not read to the end is closed. At most
    /// [`MOST`](DrainBody::MOST) bytes are read: beyond that a new connection costs less.
    #[derive(Debug)]
    pub struct DrainBody<B> {
        #[pin]
        body: B,
        left: u64,
    }
}

impl<B: Body> DrainBody<B> {
    /// How many bytes are read at most: 8 KiB. A frame without any counts as one byte.
    pub const MOST: u64 = 8 * 1024;

    /// Begins to empty this body. `None`, and the body is dropped, if there is nothing to read or more than will be
    /// read.
    pub fn new(body: B) -> Option<Self> {
        let worth_it = !body.is_end_stream() && body.size_hint().lower() <= Self::MOST;
        worth_it.then_some(DrainBody {
            body,
            left: Self::MOST,
        })
    }
}

impl<B: Body> Future for DrainBody<B> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        loop {
            let Some(Ok(frame)) = ready!(this.body.as_mut().poll_frame(cx)) else {
                return Poll::Ready(());
            };
            let bytes = frame.data_ref().map_or(0, |data| data.remaining() as u64);
            // Empty frames are charged for too, or an endless row of them would never end.
            match this.left.checked_sub(bytes.max(1)) {
                Some(left) => *this.left = left,
                None => return Poll::Ready(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use http_body::{Frame, SizeHint};
    use http_body_util::{Empty, Full};

    use super::*;

    /// Gives frames of this size for ever, and counts them.
    struct Endless<'a> {
        frame: usize,
        given: &'a mut usize,
    }

    impl Body for Endless<'_> {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let this = self.get_mut();
            *this.given += 1;
            Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![0; this.frame])))))
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::default()
        }
    }

    fn frames_read(frame: usize) -> usize {
        let mut given = 0;
        let drain = DrainBody::new(Endless {
            frame,
            given: &mut given,
        });
        tokio_test::task::spawn(drain.unwrap())
            .poll()
            .map(|()| given)
            .is_ready()
            .then_some(given)
            .expect("it must end")
    }

    #[test]
    fn an_endless_body_is_given_up_at_the_bound() {
        assert_eq!(
            frames_read(1024),
            9,
            "8 KiB are within the bound, the ninth frame is not"
        );
        assert_eq!(frames_read(1_000_000), 1);
        assert_eq!(frames_read(0), 8193, "frames without data end it too");
    }

    #[test]
    fn what_is_not_worth_it_is_not_begun() {
        assert!(DrainBody::new(Empty::<Bytes>::new()).is_none());
        assert!(DrainBody::new(Full::new(Bytes::from(vec![0; 8192]))).is_some());
        assert!(DrainBody::new(Full::new(Bytes::from(vec![0; 8193]))).is_none());
    }
}
