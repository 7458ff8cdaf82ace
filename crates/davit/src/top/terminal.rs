//! The terminal: raw, on its other screen, and as it was before when this ends, however it does.

use super::screen::{Pressed, Style};
use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// The other screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";
/// What a terminal has that does not say.
const USUAL: (u16, u16) = (80, 24);
/// More bytes than keys that were pressed at once.
const PRESSED: usize = 256;
/// How long the reading of keys goes on when nobody wants any.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// How the terminal was before; none while nothing was changed.
static BEFORE: Mutex<Option<(File, Termios)>> = Mutex::new(None);

/// The terminal while it is ours.
pub(super) struct RawTerminal {
    tty: File,
    keys: mpsc::Receiver<Result<Vec<Pressed>>>,
    has_colour: bool,
}

impl RawTerminal {
    pub(super) fn open(has_colour: bool) -> Result<Self> {
        // An open file of its own: what others have open of the terminal goes on blocking.
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened: OwnedFd = open("/dev/tty", flags, Mode::empty()).context("/dev/tty")?;
        let before = tcgetattr(&opened).context("/dev/tty")?;
        let tty = File::from(opened);
        let clone = || tty.try_clone().context("/dev/tty");
        let (own, reader) = (clone()?, clone()?);
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some((own, before));
        let (pressed, keys) = mpsc::channel(1);
        let terminal = Self {
            tty,
            keys,
            has_colour,
        };
        // Before what a panic says, which would be lost on the other screen.
        let say = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            say(panic);
        }));
        tcsetattr(&terminal.tty, OptionalActions::Now, &raw).context("/dev/tty")?;
        put(ENTER)?;
        // It ends by itself once nobody listens.
        let _reading = tokio::task::spawn_blocking(move || read_keys(&reader, &pressed));
        Ok(terminal)
    }

    /// Columns and lines.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = tcgetwinsize(&self.tty).ok();
        let size = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
        let (columns, lines) = size.map_or(USUAL, |size| (size.ws_col, size.ws_row));
        (columns.into(), lines.into())
    }

    pub(super) fn draw(&self, lines: &[(Style, String)]) -> Result<()> {
        put(&drawing(lines, self.has_colour))
    }

    /// The keys that are pressed next. Cancel-safe.
    pub(super) async fn keys(&mut self) -> Result<Vec<Pressed>> {
        let pressed = self.keys.recv().await;
        pressed.unwrap_or_else(|| bail!("the terminal is not read any more"))
    }
}

/// Passes on what is pressed, until nobody wants it or the terminal is gone. Blocks.
fn read_keys(mut tty: &File, pressed: &mpsc::Sender<Result<Vec<Pressed>>>) {
    let mut bytes = [0; PRESSED];
    while !pressed.is_closed() {
        let waited = poll(&mut [PollFd::new(tty, PollFlags::IN)], Some(&LOOK));
        let read = match waited {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => tty.read(&mut bytes),
            Err(error) => Err(error.into()),
        };
        let told = match read {
            Ok(0) => Err(anyhow::anyhow!("the terminal is gone")),
            Ok(number) => Ok(keys_of(&bytes[..number])),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(error) => Err(error).context("/dev/tty"),
        };
        let is_over = told.is_err();
        if pressed.blocking_send(told).is_err() || is_over {
            return;
        }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Makes the terminal what it was, once.
fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((tty, before)) = before {
        // There may be no terminal any more.
        let _gone = put(LEAVE);
        let _gone = tcsetattr(&tty, OptionalActions::Now, &before);
    }
}

fn put(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.context("cannot draw")
}

/// The terminal's size has changed.
pub(super) fn resizes() -> Result<Signal> {
    signal(SignalKind::window_change()).context("SIGWINCH handler")
}

/// The terminal has gone.
pub(super) fn hangups() -> Result<Signal> {
    signal(SignalKind::hangup()).context("SIGHUP handler")
}

/// Lines in place of what is on the screen.
fn drawing(lines: &[(Style, String)], has_colour: bool) -> String {
    let mut out = String::from("\x1b[H");
    for (number, (style, text)) in lines.iter().enumerate() {
        let begin = match style {
            Style::Plain => "",
            Style::Bold => "\x1b[1m",
            Style::Selected => "\x1b[7m",
            Style::Alarm if has_colour => "\x1b[31m",
            Style::Alarm => "\x1b[4m",
        };
        let end = if begin.is_empty() { "" } else { "\x1b[0m" };
        let next = if number + 1 < lines.len() { "\r\n" } else { "" };
        let _infallible = write!(out, "{begin}{text}{end}\x1b[K{next}");
    }
    out.push_str("\x1b[J");
    out
}

/// The keys of what a terminal sends.
fn keys_of(mut bytes: &[u8]) -> Vec<Pressed> {
    const SEQUENCES: [(&[u8], Pressed); 19] = [
        (b"\x1b[A", Pressed::Up),
        (b"\x1bOA", Pressed::Up),
        (b"\x1b[B", Pressed::Down),
        (b"\x1bOB", Pressed::Down),
        (b"\x1b[C", Pressed::Right),
        (b"\x1bOC", Pressed::Right),
        (b"\x1b[D", Pressed::Left),
        (b"\x1bOD", Pressed::Left),
        (b"\x1b[5~", Pressed::PageUp),
        (b"\x1b[6~", Pressed::PageDown),
        (b"\x1b[H", Pressed::Home),
        (b"\x1b[1~", Pressed::Home),
        (b"\x1bOH", Pressed::Home),
        (b"\x1b[F", Pressed::End),
        (b"\x1b[4~", Pressed::End),
        (b"\x1bOF", Pressed::End),
        (b"\x1b[Z", Pressed::BackTab),
        (b"\t", Pressed::Tab),
        (b"\x03", Pressed::Interrupt),
    ];
    let mut keys = Vec::new();
    while let Some(first) = bytes.first() {
        let known = SEQUENCES
            .iter()
            .find(|(sequence, _)| bytes.starts_with(sequence));
        let length = match known {
            Some((sequence, key)) => {
                keys.push(*key);
                sequence.len()
            }
            None if *first == 0x1b => unknown(bytes),
            None => {
                if first.is_ascii_graphic() {
                    keys.push(Pressed::Char(char::from(*first)));
                }
                1
            }
        };
        bytes = &bytes[length.min(bytes.len())..];
    }
    keys
}

/// How long a sequence is that means nothing here: until its last letter.
fn unknown(bytes: &[u8]) -> usize {
    if bytes.get(1) != Some(&b'[') {
        return 2;
    }
    let end = bytes[2..]
        .iter()
        .position(|byte| (0x40..=0x7e).contains(byte));
    end.map_or(bytes.len(), |end| end + 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_from_what_terminals_send() {
        let keys = keys_of(b"q\x1b[A\x1b[6~\t\x1b[Zs\x1bOB\x03");
        let expected = [
            Pressed::Char('q'),
            Pressed::Up,
            Pressed::PageDown,
            Pressed::Tab,
            Pressed::BackTab,
            Pressed::Char('s'),
            Pressed::Down,
            Pressed::Interrupt,
        ];
        assert_eq!(keys, expected);
        // F5, a lone escape, an unfinished sequence, letters of other alphabets
        assert_eq!(keys_of(b"\x1b[15~j"), [Pressed::Char('j')]);
        assert_eq!(keys_of(b"\x1b"), []);
        assert_eq!(keys_of(b"\x1b[1;5"), []);
        assert_eq!(keys_of("é".as_bytes()), []);
    }

    #[test]
    fn a_drawing_covers_what_was_there() {
        let lines = [
            (Style::Bold, "a".to_owned()),
            (Style::Alarm, "b".to_owned()),
        ];
        assert_eq!(
            drawing(&lines, true),
            "\x1b[H\x1b[1ma\x1b[0m\x1b[K\r\n\x1b[31mb\x1b[0m\x1b[K\x1b[J"
        );
        assert!(!drawing(&lines, false).contains("[31m"));
    }
}
