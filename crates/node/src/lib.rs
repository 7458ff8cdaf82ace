//! The node agent: pod workers, admission, resource managers, podresources, volumes, probes, status.
