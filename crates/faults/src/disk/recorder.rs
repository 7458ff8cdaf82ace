//! The file system under the program.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::protocol::{Answer, Opcode, Question, refusal};
use super::tree::{Event, Node, ROOT, Recording, Tree};

/// A directory whose changes are recorded until it is dropped.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    state: Arc<Mutex<State>>,
    server: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    tree: Tree,
    recording: Recording,
    next: Node,
}

/// Bytes of one write; the kernel divides larger ones.
const WRITE: u32 = 128 << 10;

impl Recorder {
    /// Mounts an empty file system at `path`.
    ///
    /// # Errors
    /// This account may not mount, or the kernel has no FUSE.
    pub fn mount(path: &Path) -> io::Result<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let options = format!(
            "fd={},rootmode=40000,user_id={},group_id={}",
            device.as_raw_fd(),
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw()
        );
        let options = CString::new(options)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("davit-recorder", path, "fuse", flags, options.as_c_str())?;
        let state = Arc::new(Mutex::new(State {
            tree: Tree::new(),
            recording: Recording::default(),
            next: ROOT + 1,
        }));
        let shared = Arc::clone(&state);
        let server = std::thread::spawn(move || serve(device, &shared));
        Ok(Self {
            path: path.to_owned(),
            state,
            server: Some(server),
        })
    }

    /// Like [`Recorder::mount`]; where that cannot be a printed skip, or a failure if `DAVIT_REQUIRED_PARTS` has `fuse`.
    ///
    /// # Panics
    /// The part is required and missing.
    #[must_use]
    pub fn mount_or_skip(path: &Path) -> Option<Self> {
        match Self::mount(path) {
            Ok(recorder) => Some(recorder),
            Err(error) => {
                let required = std::env::var("DAVIT_REQUIRED_PARTS").unwrap_or_default();
                let required = required.split_whitespace().any(|part| part == "fuse");
                assert!(!required, "fuse is required here but missing: {error}");
                println!("skipped: fuse is not for this account: {error}");
                None
            }
        }
    }

    /// Puts down that the program counts on what it did so far.
    pub fn say(&self, what: u64) {
        lock(&self.state).did(Event::Said(what));
    }

    /// All that is there is on the disk.
    pub fn settle(&self) {
        let mut state = lock(&self.state);
        let tree = &state.tree;
        let nodes: Vec<Node> = tree.dirs.keys().chain(tree.files.keys()).copied().collect();
        for node in nodes {
            state.did(Event::Synced { node });
        }
    }

    /// What was recorded; the directory is gone then.
    ///
    /// # Panics
    /// The server has panicked.
    #[must_use]
    pub fn end(mut self) -> Recording {
        self.leave();
        if let Some(server) = self.server.take() {
            assert!(server.join().is_ok(), "the recorder has panicked");
        }
        std::mem::take(&mut lock(&self.state).recording)
    }

    fn leave(&self) {
        // The server ends with the mount.
        let _gone = unmount(&self.path, UnmountFlags::DETACH);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.server.is_some() {
            self.leave();
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(mut device: File, state: &Mutex<State>) {
    let mut buffer = vec![0; WRITE as usize + 4096];
    loop {
        let length = match device.read(&mut buffer) {
            Ok(length) => length,
            // What was asked has been given up.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let Some(question) = Question::parse(&buffer[..length]) else {
            return;
        };
        if question.opcode == Opcode::Forget {
            continue;
        }
        let unique = question.unique;
        let mut answer = Answer::default();
        let said = match lock(state).answer(&question, &mut answer) {
            Ok(()) => answer.sent(unique),
            Err(error) => refusal(unique, error),
        };
        // Who asked may have been killed.
        let _sent = device.write_all(&said);
    }
}

impl State {
    fn did(&mut self, event: Event) {
        self.tree.apply(&event);
        self.recording.events.push(event);
    }

    fn answer(&mut self, asked: &Question<'_>, answer: &mut Answer) -> Result<(), Errno> {
        let node = asked.node;
        match asked.opcode {
            Opcode::Init => init(asked, answer),
            Opcode::Lookup => {
                let found = self.named(node, asked, 0)?;
                self.entry(found, answer);
            }
            Opcode::Getattr => self.attributes(node, answer)?,
            Opcode::Setattr => {
                self.set_attributes(asked);
                self.attributes(node, answer)?;
            }
            Opcode::Mkdir => {
                let made = self.make(node, asked, 8, true);
                self.entry(made, answer);
            }
            Opcode::Create => {
                let made = self.make(node, asked, 16, false);
                self.entry(made, answer);
                answer.u64(0).u32(0).u32(0);
            }
            Opcode::Remove => self.remove(asked)?,
            Opcode::Rename => self.rename(asked, 8)?,
            // Neither an exchange nor one that replaces nothing is recorded as what it is.
            Opcode::Rename2 if asked.u32(8) != 0 => return Err(Errno::INVAL),
            Opcode::Rename2 => self.rename(asked, 16)?,
            Opcode::Open => {
                answer.u64(0).u32(0).u32(0);
            }
            Opcode::Read => self.read(asked, answer)?,
            Opcode::Write => self.write(asked, answer),
            Opcode::Fallocate => self.allocate(asked)?,
            Opcode::Sync => self.did(Event::Synced { node }),
            Opcode::Readdir => self.read_dir(asked, answer)?,
            Opcode::Statfs => statfs(answer),
            Opcode::Forget | Opcode::Nothing => {}
            Opcode::Unknown => return Err(Errno::NOSYS),
        }
        Ok(())
    }

    fn name(asked: &Question<'_>, at: usize) -> String {
        asked.names(at).next().unwrap_or_default()
    }

    fn named(&self, dir: Node, asked: &Question<'_>, at: usize) -> Result<Node, Errno> {
        let found = self.tree.child(dir, &Self::name(asked, at));
        found.ok_or(Errno::NOENT)
    }

    fn is_dir(&self, node: Node) -> bool {
        self.tree.dirs.contains_key(&node)
    }

    fn len(&self, node: Node) -> u64 {
        self.tree.files.get(&node).map_or(0, |file| file.len)
    }

    fn entry(&self, node: Node, answer: &mut Answer) {
        answer.entry(node, self.len(node), self.is_dir(node));
    }

    fn attributes(&self, node: Node, answer: &mut Answer) -> Result<(), Errno> {
        if !self.is_dir(node) && !self.tree.files.contains_key(&node) {
            return Err(Errno::NOENT);
        }
        answer.u64(0).u32(0).u32(0);
        answer.attributes(node, self.len(node), self.is_dir(node));
        Ok(())
    }

    fn set_attributes(&mut self, asked: &Question<'_>) {
        const SIZE: u32 = 1 << 3;
        if asked.u32(0) & SIZE != 0 {
            let (node, len) = (asked.node, asked.u64(16));
            self.did(Event::Resized { node, len });
        }
    }

    fn make(&mut self, dir: Node, asked: &Question<'_>, at: usize, is_dir: bool) -> Node {
        let node = self.next;
        self.next += 1;
        self.did(Event::Made {
            dir,
            name: Self::name(asked, at),
            node,
            is_dir,
        });
        node
    }

    fn remove(&mut self, asked: &Question<'_>) -> Result<(), Errno> {
        let node = self.named(asked.node, asked, 0)?;
        if self
            .tree
            .dirs
            .get(&node)
            .is_some_and(|names| !names.is_empty())
        {
            return Err(Errno::NOTEMPTY);
        }
        self.did(Event::Removed {
            dir: asked.node,
            name: Self::name(asked, 0),
        });
        Ok(())
    }

    fn rename(&mut self, asked: &Question<'_>, at: usize) -> Result<(), Errno> {
        self.named(asked.node, asked, at)?;
        let mut names = asked.names(at);
        let (Some(from), Some(to)) = (names.next(), names.next()) else {
            return Err(Errno::INVAL);
        };
        self.did(Event::Renamed {
            from: (asked.node, from),
            to: (asked.u64(0), to),
        });
        Ok(())
    }

    fn read(&self, asked: &Question<'_>, answer: &mut Answer) -> Result<(), Errno> {
        let file = self.tree.files.get(&asked.node).ok_or(Errno::BADF)?;
        let from = asked.u64(8).min(file.len);
        let to = (from + u64::from(asked.u32(16))).min(file.len);
        let bytes = file.bytes.get(from as usize..).unwrap_or_default();
        let bytes = &bytes[..bytes.len().min((to - from) as usize)];
        answer.0.extend_from_slice(bytes);
        answer.0.resize((to - from) as usize, 0);
        Ok(())
    }

    fn write(&mut self, asked: &Question<'_>, answer: &mut Answer) {
        const HEAD: usize = 40;
        let size = asked.u32(16) as usize;
        let bytes = asked.body.get(HEAD..HEAD + size).unwrap_or_default();
        self.did(Event::Written {
            node: asked.node,
            at: asked.u64(8),
            bytes: bytes.to_vec(),
        });
        answer.u32(bytes.len() as u32).u32(0);
    }

    fn allocate(&mut self, asked: &Question<'_>) -> Result<(), Errno> {
        let (node, end) = (asked.node, asked.u64(8) + asked.u64(16));
        if asked.u32(24) != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if end > self.len(node) {
            self.did(Event::Resized { node, len: end });
        }
        Ok(())
    }

    fn read_dir(&self, asked: &Question<'_>, answer: &mut Answer) -> Result<(), Errno> {
        let names = self.tree.dirs.get(&asked.node).ok_or(Errno::NOTDIR)?;
        let (from, size) = (asked.u64(8) as usize, asked.u32(16) as usize);
        for (index, (name, node)) in names.iter().enumerate().skip(from) {
            if answer.0.len() + 32 + name.len() > size {
                break;
            }
            answer.dir_entry(*node, index as u64 + 1, name, self.is_dir(*node));
        }
        Ok(())
    }
}

fn init(asked: &Question<'_>, answer: &mut Answer) {
    const BIG_WRITES: u32 = 1 << 5;
    let ahead = asked.u32(8);
    answer.u32(7).u32(31).u32(ahead).u32(BIG_WRITES);
    // Requests at once: 12 waiting; write size; granularity of times; pages of a request.
    answer.u32(12 | (9 << 16)).u32(WRITE).u32(1);
    answer.u32(WRITE / 4096).u32(0);
    for _ in 0..7 {
        answer.u32(0);
    }
}

/// Room enough for everything.
fn statfs(answer: &mut Answer) {
    const BLOCKS: u64 = 1 << 24;
    for _ in 0..5 {
        answer.u64(BLOCKS);
    }
    answer.u32(4096).u32(255).u32(4096).u32(0);
    for _ in 0..6 {
        answer.u32(0);
    }
}
