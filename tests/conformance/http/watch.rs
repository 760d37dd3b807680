//! Was the machine late? A case that went wrong may be played again only if it was.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{Instant, sleep_until},
};

const EVERY: Duration = Duration::from_millis(10);

/// A machine that takes this long for what takes less than one millisecond is busy. Some cases turn on a few
/// milliseconds: a call that comes just before its sleep window has ended, a failure just before a tick of the circuit.
const LATE: Duration = Duration::from_millis(8);

/// A task that wakes up, connects to a server on loopback, and gets a byte back; and writes down when this took long.
/// The attempts of the cases are made of the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Watch {
    late: Arc<Mutex<Vec<(Instant, Duration)>>>,
}

impl Watch {
    /// Begins to watch, for as long as the runtime lives.
    pub(super) async fn begin() -> io::Result<Watch> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.write_all(b".").await;
            }
        });
        let watch = Watch::default();
        let late = Arc::clone(&watch.late);
        tokio::spawn(async move {
            loop {
                let due = Instant::now() + EVERY;
                sleep_until(due).await;
                let exchanged = exchange(address).await;
                let by = due.elapsed();
                if by > LATE || exchanged.is_err() {
                    late.lock().unwrap().push((Instant::now(), by));
                }
            }
        });
        Ok(watch)
    }

    /// By how much it was late at most, if it was, in this time.
    pub(super) fn late_within(&self, from: Instant, until: Instant) -> Option<Duration> {
        let late = self.late.lock().unwrap();
        let within = late.iter().filter(|(at, by)| *at >= from && *at - *by <= until);
        within.map(|(_, by)| *by).max()
    }
}

async fn exchange(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.read_exact(&mut [0]).await?;
    Ok(())
}
