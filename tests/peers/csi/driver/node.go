package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ephemeral is the key of volume_context that says whether a volume is made with its pod.
const ephemeral = "csi.storage.k8s.io/ephemeral"

type node struct {
	csi.UnimplementedNodeServer
	options
	disk *disk
}

func (n *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	answer := &csi.NodeGetInfoResponse{NodeId: n.node, MaxVolumesPerNode: n.maxVolumes}
	if len(n.topology) > 0 {
		answer.AccessibleTopology = &csi.Topology{Segments: n.topology}
	}
	return answer, nil
}

func (n *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	types := []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
	}
	if n.stage {
		types = append(types, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	}
	if n.modesOfPods {
		types = append(types, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	}
	if n.mountGroup {
		types = append(types, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
	}
	answer := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range types {
		answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return answer, nil
}

// check refuses what a careful driver refuses.
func (n *node) check(id string, capability *csi.VolumeCapability, publishContext map[string]string) error {
	if id == "" {
		return status.Error(codes.InvalidArgument, "a volume is needed")
	}
	if err := usable(capability); err != nil {
		return err
	}
	if capability.GetBlock() != nil && !n.stage {
		return status.Error(codes.InvalidArgument, "devices are made when they are staged")
	}
	if n.attach && publishContext[attachedTo] != n.node {
		return status.Errorf(codes.FailedPrecondition, "attached to %q, this is %q", publishContext[attachedTo], n.node)
	}
	return nil
}

func (n *node) NodeStageVolume(_ context.Context, request *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if !n.stage {
		return nil, status.Error(codes.Unimplemented, "volumes are not staged")
	}
	if request.StagingTargetPath == "" {
		return nil, status.Error(codes.InvalidArgument, "a place is needed")
	}
	if err := n.check(request.VolumeId, request.VolumeCapability, request.PublishContext); err != nil {
		return nil, err
	}
	if request.VolumeCapability.GetBlock() != nil {
		return &csi.NodeStageVolumeResponse{}, n.disk.connect(request.VolumeId)
	}
	data, err := n.disk.data(volumes, request.VolumeId)
	if err != nil {
		return nil, err
	}
	if err := n.giveTo(data, request.VolumeCapability); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, bind(data, request.StagingTargetPath, false)
}

func (n *node) NodeUnstageVolume(_ context.Context, request *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if request.VolumeId == "" || request.StagingTargetPath == "" {
		return nil, status.Error(codes.InvalidArgument, "a volume and a place are needed")
	}
	if err := n.disk.disconnect(request.VolumeId); err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, unbind(request.StagingTargetPath)
}

func (n *node) NodePublishVolume(_ context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	inline := request.VolumeContext[ephemeral] == "true"
	publishContext := request.PublishContext
	if inline {
		publishContext = map[string]string{attachedTo: n.node}
	}
	if request.TargetPath == "" {
		return nil, status.Error(codes.InvalidArgument, "a place is needed")
	}
	if err := n.check(request.VolumeId, request.VolumeCapability, publishContext); err != nil {
		return nil, err
	}
	if inline {
		if err := n.make(request.VolumeId); err != nil {
			return nil, err
		}
	}
	if request.VolumeCapability.GetBlock() != nil {
		return &csi.NodePublishVolumeResponse{}, n.disk.publishDevice(request.VolumeId, request.TargetPath, request.Readonly)
	}
	from, err := n.disk.data(volumes, request.VolumeId)
	if err != nil {
		return nil, err
	}
	if n.stage && !inline {
		from = request.StagingTargetPath
		if staged, err := isMounted(from); err != nil || !staged {
			return nil, status.Errorf(codes.FailedPrecondition, "not staged at %q (%v)", from, err)
		}
	}
	if err := n.giveTo(from, request.VolumeCapability); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(request.TargetPath, 0o750); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, bind(from, request.TargetPath, request.Readonly)
}

// make makes the directory of an in-line volume.
func (n *node) make(id string) error {
	n.disk.lock.Lock()
	defer n.disk.lock.Unlock()
	_, err := n.disk.data(volumes, id)
	if status.Code(err) != codes.NotFound {
		return err
	}
	return n.disk.create(volumes, &record{ID: id, Name: ephemeral, Capacity: standard, Made: time.Now()}, "")
}

// giveTo gives a volume to the group of a pod, if the driver said that it does.
func (n *node) giveTo(path string, capability *csi.VolumeCapability) error {
	text := capability.GetMount().GetVolumeMountGroup()
	if !n.mountGroup || text == "" {
		return nil
	}
	group, err := strconv.Atoi(text)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "group %q", text)
	}
	if err := os.Chown(path, -1, group); err != nil {
		return err
	}
	return os.Chmod(path, 0o770|os.ModeSetgid)
}

func (n *node) NodeUnpublishVolume(_ context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if request.VolumeId == "" || request.TargetPath == "" {
		return nil, status.Error(codes.InvalidArgument, "a volume and a place are needed")
	}
	if err := unbind(request.TargetPath); err != nil {
		return nil, err
	}
	if err := os.Remove(request.TargetPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	n.disk.lock.Lock()
	defer n.disk.lock.Unlock()
	if there, err := n.disk.load(volumes, request.VolumeId); err == nil && there.Name == ephemeral {
		return &csi.NodeUnpublishVolumeResponse{}, n.disk.remove(volumes, there.ID)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (n *node) NodeGetVolumeStats(_ context.Context, request *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if request.VolumeId == "" || request.VolumePath == "" {
		return nil, status.Error(codes.InvalidArgument, "a volume and a place are needed")
	}
	var s unix.Statfs_t
	if err := unix.Statfs(request.VolumePath, &s); err != nil {
		return nil, status.Errorf(codes.NotFound, "%s: %v", request.VolumePath, err)
	}
	block := int64(s.Bsize)
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{
			Unit: csi.VolumeUsage_BYTES, Total: int64(s.Blocks) * block, Available: int64(s.Bavail) * block,
			Used: int64(s.Blocks-s.Bfree) * block,
		},
		{
			Unit: csi.VolumeUsage_INODES, Total: int64(s.Files), Available: int64(s.Ffree), Used: int64(s.Files - s.Ffree),
		},
	}}, nil
}

func (n *node) NodeExpandVolume(_ context.Context, request *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	if request.VolumeId == "" || request.VolumePath == "" {
		return nil, status.Error(codes.InvalidArgument, "a volume and a place are needed")
	}
	n.disk.lock.Lock()
	defer n.disk.lock.Unlock()
	there, err := n.disk.load(volumes, request.VolumeId)
	if err != nil {
		return nil, err
	}
	if mounted, err := isMounted(request.VolumePath); err != nil || !mounted {
		return nil, status.Errorf(codes.NotFound, "not published at %q (%v)", request.VolumePath, err)
	}
	if err := n.disk.expandDevice(there.ID, request.CapacityRange.GetRequiredBytes()); err != nil {
		return nil, err
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: max(there.Capacity, request.CapacityRange.GetRequiredBytes())}, nil
}
