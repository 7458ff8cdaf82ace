use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const LOG: &str = "2024-01-01T00:00:00.000000001Z stdout F one\n\
                   2024-01-01T00:00:01.000000001Z stderr F two\n\
                   2024-01-01T00:00:02.000000001Z stdout P thr\n\
                   2024-01-01T00:00:02.000000001Z stdout F ee\n\
                   2024-01-01T00:00:03Z stdout F \n";

/// A container that has ended.
struct Ended;

#[async_trait]
impl Writing for Ended {
    async fn writing(&self) -> bool {
        false
    }
}

async fn read(options: ShownLines) -> String {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("0.log");
    std::fs::write(&path, LOG).unwrap();
    let mut reader = LogReader::open(LogFile::at(&path), options, Box::new(Ended))
        .await
        .unwrap();
    let mut out = Vec::new();
    while let Some(piece) = reader.next().await.unwrap() {
        out.extend_from_slice(&piece);
    }
    String::from_utf8(out).unwrap()
}

#[tokio::test]
async fn whole_log_joins_partial_lines() {
    assert_eq!(read(ShownLines::default()).await, "one\ntwo\nthree\n\n");
    assert_eq!(
        read(ShownLines {
            follow: true,
            ..ShownLines::default()
        })
        .await,
        "one\ntwo\nthree\n\n"
    );
}

#[tokio::test]
async fn tail_since_limit_and_stream() {
    let with = |f: fn(&mut ShownLines)| {
        let mut o = ShownLines::default();
        f(&mut o);
        read(o)
    };
    assert_eq!(with(|o| o.tail_lines = Some(2)).await, "ee\n\n");
    assert_eq!(with(|o| o.tail_lines = Some(0)).await, "");
    assert_eq!(
        with(|o| o.tail_lines = Some(99)).await,
        "one\ntwo\nthree\n\n"
    );
    assert_eq!(
        with(|o| o.since = Some("2024-01-01T00:00:02Z".parse().unwrap())).await,
        "three\n\n"
    );
    assert_eq!(with(|o| o.limit_bytes = Some(5)).await, "one\nt");
    assert_eq!(with(|o| o.stream = Some("stderr")).await, "two\n");
    assert_eq!(
        with(|o| {
            o.timestamps = true;
            o.tail_lines = Some(1);
        })
        .await,
        "2024-01-01T00:00:03Z \n"
    );
}

/// A container writes on while its log is asked for.
#[tokio::test]
async fn what_is_written_meanwhile_is_of_the_next_reading() {
    use std::io::Write;
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("0.log");
    for (tail_lines, wanted) in [(Some(1), "\n"), (None, "one\ntwo\nthree\n\n")] {
        std::fs::write(&path, LOG).unwrap();
        let options = ShownLines {
            tail_lines,
            ..ShownLines::default()
        };
        let opening = LogReader::open(LogFile::at(&path), options, Box::new(Ended));
        let mut reader = opening.await.unwrap();
        let mut writer = std::fs::File::options().append(true).open(&path).unwrap();
        writer
            .write_all(b"2024-01-01T00:00:04Z stdout F late\n")
            .unwrap();
        let mut out = Vec::new();
        while let Some(piece) = reader.next().await.unwrap() {
            out.extend_from_slice(&piece);
        }
        assert_eq!(out, wanted.as_bytes());
    }
}

struct Flag(Arc<AtomicBool>);

#[async_trait]
impl Writing for Flag {
    async fn writing(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Item 150.
#[tokio::test]
async fn follow_goes_on_across_a_rotation_until_the_container_ends() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("0.log");
    std::fs::write(&path, "2024-01-01T00:00:00Z stdout F a\n").unwrap();
    let alive = Arc::new(AtomicBool::new(true));
    let options = ShownLines {
        follow: true,
        ..ShownLines::default()
    };
    let mut reader = LogReader::open(LogFile::at(&path), options, Box::new(Flag(alive.clone())))
        .await
        .unwrap();
    assert_eq!(reader.next().await.unwrap().unwrap(), "a\n");
    std::fs::rename(&path, tmp.path().join("0.log.old")).unwrap();
    std::fs::write(&path, "2024-01-01T00:00:01Z stdout F b\n").unwrap();
    assert_eq!(reader.next().await.unwrap().unwrap(), "b\n");
    alive.store(false, Ordering::SeqCst);
    assert_eq!(reader.next().await.unwrap(), None);
}

#[test]
fn last_lines_for_termination_messages() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("0.log");
    std::fs::write(&path, LOG).unwrap();
    assert_eq!(
        last_lines(&LogFile::at(&path), 80, 2048).unwrap(),
        "one\ntwo\nthree\n\n"
    );
    assert_eq!(last_lines(&LogFile::at(&path), 2, 2048).unwrap(), "ee\n\n");
    assert_eq!(last_lines(&LogFile::at(&path), 80, 4).unwrap(), "ee\n\n");
}
