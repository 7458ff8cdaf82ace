//! The unit of systemd.

/// A service that runs `davit COMMAND` with a configuration file.
///
/// Only davit itself is stopped with it: containers and their monitors go on, and are found again. It says when it is ready,
/// and that it works; should it not, it is started anew.
pub(super) fn text(command: &str, binary: &str, configuration: &str) -> String {
    let what = match command {
        "node" => "davit: node of a Kubernetes cluster",
        _ => "davit: a Kubernetes cluster for devices",
    };
    format!(
        "[Unit]
Description={what}
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
NotifyAccess=main
ExecStart={binary} {command} --configuration {configuration}
Restart=always
RestartSec=1
TimeoutStartSec=90
TimeoutStopSec=200
WatchdogSec=60
KillMode=process
Delegate=yes
LimitNOFILE=1048576
TasksMax=infinity
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
"
    )
}
