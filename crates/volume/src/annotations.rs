//! Keys of annotations and finalizers by which the parts of storage talk to one another.

/// On claims, value `yes` (which nobody looks at): the claim was bound once, and never goes back to being unbound.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// On claims and volumes, value `yes`: this side of the link was not written by the user, so that unbinding may clear it.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// On volumes: the name of the provisioner that made it, which also deletes it.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// On claims: the provisioner that is asked to make a volume.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The older name of [`STORAGE_PROVISIONER`]; both are set.
pub const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// On claims of classes that wait for their first consumer: the node that the scheduler chose. A provisioner that cannot
/// serve that node removes it.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On claims: who resizes.
pub const STORAGE_RESIZER: &str = "volume.kubernetes.io/storage-resizer";
/// On claims of volumes that several nodes have: what they are on a node need not grow.
pub const NODE_EXPANSION_NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";
/// On volumes: their size before a growth that the file system has not followed yet.
pub const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
/// On claims and volumes: the class, from before there was a field for it; it wins over the field.
pub const BETA_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// On volumes: mount options separated by commas; they win over the field for in-tree types.
pub const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
/// On classes, value `true`: claims that name no class get this one.
pub const IS_DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
/// The older name of [`IS_DEFAULT_CLASS`]; either is enough.
pub const BETA_IS_DEFAULT_CLASS: &str = "storageclass.beta.kubernetes.io/is-default-class";
/// On volumes: a supplemental group of every pod that mounts it.
pub const VOLUME_GID: &str = "pv.beta.kubernetes.io/gid";
/// On claims and volumes: a CSI driver took over from an in-tree type; controllers of in-tree types stand down.
pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";

/// Finalizer of claims that pods use.
pub const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
/// Finalizer of volumes that claims use.
pub const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
/// Finalizer of VolumeAttributesClasses that claims or volumes name.
pub const ATTRIBUTES_CLASS_PROTECTION: &str = "kubernetes.io/vac-protection";
/// Finalizer of volumes whose storage an external provisioner deletes first.
pub const EXTERNAL_PROVISIONER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// Finalizer of volumes whose storage the PersistentVolume controller deletes first.
pub const IN_TREE_PROVISIONER: &str = "kubernetes.io/pv-controller";

/// The value of [`BIND_COMPLETED`] and [`BOUND_BY_CONTROLLER`].
pub const YES: &str = "yes";
