//! HTTP/1, as much of it as there is to count.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};

use super::{
    log::Visit,
    server::{Door, End, Manner, Site},
};

/// How long a half-closed connection is read on.
const DRAIN: Duration = Duration::from_millis(500);

struct Connection {
    tcp: TcpStream,
    buffer: Vec<u8>,
    site: Arc<Site>,
}

/// The length of a request's body, as its head tells it.
enum Framing {
    Length(usize),
    Chunked,
}

struct Head {
    visit: Visit,
    framing: Framing,
    /// HEAD: the answer has no body.
    bodiless: bool,
}

pub async fn serve(tcp: TcpStream, door: Door, site: Arc<Site>) -> io::Result<()> {
    let mut connection = Connection {
        tcp,
        buffer: Vec::new(),
        site,
    };
    match door {
        Door::Open => {}
        Door::AtOnce(end) => return connection.end(end).await,
        Door::FirstBytes(end) => {
            connection.more().await?;
            return connection.end(end).await;
        }
    }
    loop {
        let Some(head) = connection.head().await? else {
            return Ok(());
        };
        let manner =
            connection
                .site
                .script
                .manner(connection.site.number, head.visit.call, head.visit.attempt);
        if let Some(end) = connection.follow(manner, head).await? {
            return connection.end(end).await;
        }
    }
}

impl Connection {
    /// Does as it is told. Some: and the connection ends so.
    async fn follow(&mut self, manner: Manner, head: Head) -> io::Result<Option<End>> {
        let Head {
            mut visit,
            mut framing,
            bodiless,
        } = head;
        if let Manner::AfterHead(end) = manner {
            return Ok(Some(end));
        }
        if let Manner::Early(status) = manner {
            self.answer(&visit, status, None, bodiless).await?;
        }
        if let Manner::MidBody(end) = manner {
            self.body(&mut framing, &mut visit, 1).await?;
            return Ok(Some(end));
        }
        self.body(&mut framing, &mut visit, usize::MAX).await?;
        visit.whole();
        match manner {
            Manner::Early(_) => {}
            Manner::Answer => self.answer(&visit, 200, None, bodiless).await?,
            Manner::Status(status, after) => self.answer(&visit, status, after, bodiless).await?,
            Manner::AnswerThen(end, idle) => {
                self.answer(&visit, 200, None, bodiless).await?;
                if idle.is_zero() || !self.comes_within(idle).await? {
                    return Ok(Some(end));
                }
            }
            Manner::Late(wait) => {
                visit.waits();
                if self.comes_within(wait).await? {
                    // Nobody sends a second request before the answer to the first: it is the end.
                    visit.left();
                    return Ok(Some(End::Close));
                }
                self.answer(&visit, 200, None, bodiless).await?;
            }
            Manner::Stall => {
                visit.waits();
                self.drain().await;
                visit.left();
                return Ok(Some(End::Close));
            }
            Manner::MidResponse(end) => {
                self.half_answer(&visit).await?;
                return Ok(Some(end));
            }
            Manner::StallInResponse => {
                self.half_answer(&visit).await?;
                visit.waits();
                self.drain().await;
                visit.left();
                return Ok(Some(End::Close));
            }
            Manner::AfterHead(end) | Manner::MidBody(end) | Manner::AfterRequest(end) => {
                return Ok(Some(end));
            }
            Manner::Refuse | Manner::Cancel | Manner::GoAwayBefore | Manner::GoAwayBehind => {
                return Ok(Some(End::Reset));
            }
        }
        Ok(None)
    }

    /// The next request. None: the client has gone without one.
    async fn head(&mut self) -> io::Result<Option<Head>> {
        let end = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break at + 4;
            }
            if let Err(gone) = self.more().await {
                // Also a part of a request has been seen.
                self.note_rest();
                return match gone.kind() {
                    io::ErrorKind::UnexpectedEof => Ok(None),
                    _ => Err(gone),
                };
            }
        };
        let head: Vec<u8> = self.buffer.drain(..end).collect();
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        let mut framing = Framing::Length(0);
        let mut key = None;
        for (name, value) in head.lines().filter_map(|line| line.split_once(": ")) {
            match name {
                "content-length" => framing = Framing::Length(value.parse().unwrap_or(0)),
                "idempotency-key" => key = Some(value.as_bytes()),
                "transfer-encoding" => framing = Framing::Chunked,
                _ => {}
            }
        }
        let visit = self.visit(&head, key);
        let bodiless = head.starts_with("head ");
        Ok(visit.map(|visit| Head {
            visit,
            framing,
            bodiless,
        }))
    }

    fn visit(&self, head: &str, key: Option<&[u8]>) -> Option<Visit> {
        self.site.visit(head.split(' ').nth(1)?, key)
    }

    /// Writes down what is there of a request that will not be read any further.
    fn note_rest(&mut self) {
        let rest = std::mem::take(&mut self.buffer);
        let line = String::from_utf8_lossy(&rest);
        // The path may be cut off, and another call's number be read: only whole ones count.
        if line.split(' ').count() > 2 {
            drop(self.visit(&line, None));
        }
    }

    async fn more(&mut self) -> io::Result<()> {
        match self.tcp.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Does anything come within this time, if only the end?
    async fn comes_within(&mut self, wait: Duration) -> io::Result<bool> {
        match tokio::time::timeout(wait, self.tcp.readable()).await {
            Ok(readable) => readable.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// Reads the body, at least so much of it, or to its end.
    async fn body(&mut self, framing: &mut Framing, visit: &mut Visit, least: usize) -> io::Result<()> {
        match framing {
            Framing::Length(length) => self.data((*length).min(least), visit).await,
            Framing::Chunked => {
                let mut read = 0;
                loop {
                    let size = self.line().await?;
                    let size = usize::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
                    if size == 0 {
                        while !self.line().await?.trim().is_empty() {}
                        return Ok(());
                    }
                    self.data(size, visit).await?;
                    self.line().await?;
                    read += size;
                    if read >= least {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(at) = find(&self.buffer, b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..at + 2).collect();
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            self.more().await?;
        }
    }

    async fn data(&mut self, mut size: usize, visit: &mut Visit) -> io::Result<()> {
        while size > 0 {
            if self.buffer.is_empty() {
                self.more().await?;
            }
            let here = size.min(self.buffer.len());
            visit.read(&self.buffer[..here]);
            self.buffer.drain(..here);
            size -= here;
        }
        Ok(())
    }

    async fn answer(
        &mut self,
        visit: &Visit,
        status: u16,
        after: Option<u64>,
        bodiless: bool,
    ) -> io::Result<()> {
        let body = self.site.script.answer(visit.call);
        let mut answer = format!("HTTP/1.1 {status} x\r\n").into_bytes();
        if let Some(after) = after {
            answer.extend(format!("retry-after: {after}\r\n").into_bytes());
        }
        if visit.call % 3 == 0 && !bodiless {
            answer.extend(b"transfer-encoding: chunked\r\n\r\n");
            for chunk in body.chunks(body.len().div_ceil(2)) {
                answer.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
                answer.extend(chunk);
                answer.extend(b"\r\n");
            }
            answer.extend(b"0\r\n\r\n");
        } else {
            answer.extend(format!("content-length: {}\r\n\r\n", body.len()).into_bytes());
            if !bodiless {
                answer.extend(body);
            }
        }
        self.tcp.write_all(&answer).await
    }

    async fn half_answer(&mut self, visit: &Visit) -> io::Result<()> {
        let body = self.site.script.answer(visit.call);
        let mut answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
        answer.extend(&body[..body.len() / 2]);
        self.tcp.write_all(&answer).await
    }

    /// Reads until the client has gone.
    async fn drain(&mut self) {
        let mut sink = [0; 4096];
        while let Ok(1..) = self.tcp.read(&mut sink).await {}
    }

    async fn end(mut self, end: End) -> io::Result<()> {
        match end {
            End::Close | End::Reset => {
                // What has come until now was seen.
                let _ = self.tcp.try_read_buf(&mut self.buffer);
                self.note_rest();
                if end == End::Reset {
                    self.tcp.set_zero_linger()?;
                }
            }
            End::Half => {
                self.tcp.shutdown().await?;
                let until = Instant::now() + DRAIN;
                while let Ok(Ok(())) = tokio::time::timeout_at(until, self.more()).await {}
                self.note_rest();
            }
        }
        Ok(())
    }
}

fn find(buffer: &[u8], mark: &[u8]) -> Option<usize> {
    buffer.windows(mark.len()).position(|window| window == mark)
}
