//! The calls on one driver.

use crate::answer::{Said, read, shown};
use crate::{DriverAnswer, DriverCapabilities, DriverName, Error, process};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

/// How long a call may take.
pub const CALL_LIMIT: Duration = Duration::from_secs(120);
/// How long a driver may wait for a device.
const ATTACH_WAIT_LIMIT: Duration = Duration::from_secs(600);

/// How long calls may take.
#[derive(Debug, Clone, Copy)]
pub struct CallLimits {
    /// All but the next.
    pub call: Duration,
    /// `waitforattach`.
    pub wait_for_attach: Duration,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self {
            call: CALL_LIMIT,
            wait_for_attach: ATTACH_WAIT_LIMIT,
        }
    }
}

/// What became of `waitforattach`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachWait {
    /// The driver's device, which may be empty.
    Device(String),
    /// The device that attaching answered has to do.
    NotSupported,
}

/// A driver that has said what it can do. Each command is one method with the arguments in their order; options are those of
/// [`crate::FlexVolume`]. `None` and `false` say that the driver does not support a command: it is not asked again.
///
/// Callers see to it that calls for one volume do not overlap.
#[derive(Debug)]
pub struct FlexDriver {
    name: DriverName,
    executable: PathBuf,
    limits: CallLimits,
    capabilities: DriverCapabilities,
    unsupported: Mutex<BTreeSet<&'static str>>,
}

impl FlexDriver {
    /// Has the executable say what it can do.
    pub(crate) async fn init(
        name: DriverName,
        executable: PathBuf,
        limits: CallLimits,
    ) -> Result<Self, Error> {
        let mut driver = Self {
            name,
            executable,
            limits,
            capabilities: DriverCapabilities::default(),
            unsupported: Mutex::default(),
        };
        let answer = driver.call("init", &[]).await?;
        driver.capabilities = answer.ok_or(Error::NotSupported)?.capabilities;
        Ok(driver)
    }

    /// The driver's name.
    pub fn name(&self) -> &DriverName {
        &self.name
    }

    /// What it can do.
    pub fn capabilities(&self) -> DriverCapabilities {
        self.capabilities
    }

    /// `getvolumename`. What it answers is not used, as upstream.
    ///
    /// # Errors
    /// See [`Error`]; so for all calls.
    pub async fn get_volume_name(&self, options: &str) -> Result<bool, Error> {
        self.does("getvolumename", &[options]).await
    }

    /// `attach`: the device.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn attach(&self, options: &str, node: &str) -> Result<Option<String>, Error> {
        let answer = self.call("attach", &[options, node]).await?;
        Ok(answer.map(|answer| answer.device))
    }

    /// `detach`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn detach(&self, volume: &str, node: &str) -> Result<bool, Error> {
        self.does("detach", &[volume, node]).await
    }

    /// `waitforattach`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn wait_for_attach(&self, device: &str, options: &str) -> Result<AttachWait, Error> {
        let limit = self.limits.wait_for_attach;
        let answer = self
            .within("waitforattach", &[device, options], limit)
            .await?;
        Ok(answer.map_or(AttachWait::NotSupported, |a| AttachWait::Device(a.device)))
    }

    /// `isattached`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn is_attached(&self, options: &str, node: &str) -> Result<Option<bool>, Error> {
        let answer = self.call("isattached", &[options, node]).await?;
        Ok(answer.map(|answer| answer.attached))
    }

    /// `mountdevice`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn mount_device(
        &self,
        dir: &Path,
        device: &str,
        options: &str,
    ) -> Result<bool, Error> {
        self.does("mountdevice", &[&text(dir), device, options])
            .await
    }

    /// `unmountdevice`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn unmount_device(&self, dir: &Path) -> Result<bool, Error> {
        self.does("unmountdevice", &[&text(dir)]).await
    }

    /// `mount`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn mount(&self, dir: &Path, options: &str) -> Result<bool, Error> {
        self.does("mount", &[&text(dir), options]).await
    }

    /// `unmount`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn unmount(&self, dir: &Path) -> Result<bool, Error> {
        self.does("unmount", &[&text(dir)]).await
    }

    /// `expandvolume`; sizes in bytes. The size afterwards, 0 where the driver does not tell.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn expand_volume(
        &self,
        options: &str,
        mount: &Path,
        new_size: i64,
        old_size: i64,
    ) -> Result<Option<i64>, Error> {
        let (new, old) = (new_size.to_string(), old_size.to_string());
        let arguments = [options, &text(mount), &new, &old];
        let answer = self.call("expandvolume", &arguments).await?;
        Ok(answer.map(|answer| answer.new_size))
    }

    /// `expandfs`; sizes in bytes.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn expand_fs(
        &self,
        options: &str,
        device: &str,
        mount: &Path,
        new_size: i64,
        old_size: i64,
    ) -> Result<bool, Error> {
        let (new, old) = (new_size.to_string(), old_size.to_string());
        let arguments = [options, device, &text(mount), &new, &old];
        self.does("expandfs", &arguments).await
    }

    async fn does(&self, command: &'static str, arguments: &[&str]) -> Result<bool, Error> {
        Ok(self.call(command, arguments).await?.is_some())
    }

    async fn call(
        &self,
        command: &'static str,
        arguments: &[&str],
    ) -> Result<Option<DriverAnswer>, Error> {
        self.within(command, arguments, self.limits.call).await
    }

    async fn within(
        &self,
        command: &'static str,
        arguments: &[&str],
        limit: Duration,
    ) -> Result<Option<DriverAnswer>, Error> {
        if self.unsupported.lock().contains(command) {
            return Ok(None);
        }
        let arguments: Vec<&str> = std::iter::once(command)
            .chain(arguments.iter().copied())
            .collect();
        let ended = process::run(&self.executable, &arguments, limit).await?;
        let ended = ended.ok_or_else(|| Error::TimedOut {
            driver: self.name.to_string(),
            command,
            limit,
        })?;
        if !ended.stderr.is_empty() {
            let text = shown(&[], &ended.stderr);
            tracing::debug!(driver = %self.name, command, stderr = text);
        }
        match read(&ended.stdout, &ended.stderr) {
            Ok(Said::Success(answer)) if ended.status.success() => Ok(Some(answer)),
            Ok(Said::Success(_)) => Err(Error::Exit(how(ended.status))),
            Ok(Said::NotSupported) => {
                self.unsupported.lock().insert(command);
                Ok(None)
            }
            Ok(Said::Failure(status, message)) => Err(Error::Failed {
                command,
                status,
                message,
            }),
            Err(why) => Err(Error::NoAnswer {
                driver: self.name.to_string(),
                command,
                ended: how(ended.status),
                why,
                output: shown(&ended.stdout, &ended.stderr),
            }),
        }
    }
}

/// How a process ended, in upstream's words.
fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
