//! Which of its paths the node's server answers, as configured.

/// What the node answers over the network. The defaults are the kubelet's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServedPaths {
    /// Whether there is the server with TLS at all (`enableServer`).
    pub secure: bool,
    /// Whether it executes in containers, shows their logs and the machine's (`enableDebuggingHandlers`).
    pub debugging: bool,
    /// Whether the machine's logs are shown (`enableSystemLogHandler`).
    pub system_logs: bool,
    /// The port on which everybody is told, without TLS, of pods and of what is used (`readOnlyPort`).
    pub read_only: Option<u16>,
}

impl Default for ServedPaths {
    fn default() -> Self {
        Self {
            secure: true,
            debugging: true,
            system_logs: true,
            read_only: None,
        }
    }
}

impl ServedPaths {
    /// What the port without TLS answers.
    pub(crate) const READ_ONLY: Self = Self {
        secure: false,
        debugging: false,
        system_logs: false,
        read_only: None,
    };

    /// Why a path is answered with 405, whatever the method. There are no profiles of this program and no flags to set in it.
    pub(crate) fn refusal(self, parts: &[&str]) -> Option<&'static str> {
        match parts {
            [
                "run" | "exec" | "attach" | "portForward" | "containerLogs" | "runningpods"
                | "logs",
                ..,
            ]
            | ["debug", "pprof", ..]
                if !self.debugging =>
            {
                Some("Debug endpoints are disabled.\n")
            }
            ["logs", ..] if !self.system_logs => Some("logs endpoint is disabled.\n"),
            ["debug", "pprof", ..] => Some("profiling endpoint is disabled.\n"),
            ["debug", "flags", "v"] if self.debugging => Some("flags endpoint is disabled.\n"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_executes_or_shows_logs_can_be_switched_off() {
        let refused = |served: ServedPaths, path: &str| {
            let parts: Vec<&str> = path.split('/').collect();
            served.refusal(&parts).is_some()
        };
        let all = ServedPaths::default();
        let without = |debugging, system_logs| ServedPaths {
            debugging,
            system_logs,
            ..all
        };
        for path in [
            "exec/ns/p/c",
            "run/ns/p/c",
            "attach/ns/p/c",
            "portForward/ns/p",
            "containerLogs/ns/p/c",
            "runningpods",
        ] {
            assert!(!refused(all, path), "{path}");
            assert!(!refused(without(true, false), path), "{path}");
            assert!(refused(without(false, true), path), "{path}");
            assert!(refused(ServedPaths::READ_ONLY, path), "{path}");
        }
        assert!(!refused(all, "logs/syslog"));
        assert!(refused(without(true, false), "logs/syslog"));
        assert!(refused(all, "debug/pprof/heap") && refused(all, "debug/flags/v"));
        for path in ["pods", "metrics/cadvisor", "stats/summary", "healthz"] {
            assert!(!refused(ServedPaths::READ_ONLY, path), "{path}");
        }
    }
}
