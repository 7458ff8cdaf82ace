package main

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// attachedTo is the key of publish_context with the node a volume was attached to.
const attachedTo = "attached-to"

// standard is the size of a volume that was asked for without one, in bytes.
const standard = 1 << 30

type controller struct {
	csi.UnimplementedControllerServer
	options
	disk *disk
}

func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	types := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
	}
	if c.attach {
		types = append(types, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
			csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES)
	}
	if c.modesOfPods {
		types = append(types, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	}
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range types {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return answer, nil
}

func (c *controller) CreateVolume(_ context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if request.Name == "" || len(request.VolumeCapabilities) == 0 {
		return nil, status.Error(codes.InvalidArgument, "a name and capabilities are needed")
	}
	for _, capability := range request.VolumeCapabilities {
		if err := usable(capability); err != nil {
			return nil, err
		}
	}
	if err := modifiable(request.MutableParameters); err != nil {
		return nil, err
	}
	c.disk.lock.Lock()
	defer c.disk.lock.Unlock()
	kind, source := volumes, request.VolumeContentSource.GetVolume().GetVolumeId()
	if snapshot := request.VolumeContentSource.GetSnapshot().GetSnapshotId(); snapshot != "" {
		kind, source = snapshots, snapshot
	}
	wanted, most := request.CapacityRange.GetRequiredBytes(), request.CapacityRange.GetLimitBytes()
	id := idOf(request.Name)
	there, err := c.disk.load(volumes, id)
	switch {
	case err == nil:
		if there.Capacity < wanted || most > 0 && there.Capacity > most || there.Source != source {
			return nil, status.Errorf(codes.AlreadyExists, "volume %s is there and is another", request.Name)
		}
	case status.Code(err) == codes.NotFound:
		capacity := wanted
		if capacity == 0 {
			capacity = standard
			if most > 0 {
				capacity = min(standard, most)
			}
		}
		there = &record{ID: id, Name: request.Name, Capacity: capacity, Source: source,
			Mutable: request.MutableParameters, Made: time.Now()}
		from := ""
		if source != "" {
			if from, err = c.disk.data(kind, source); err != nil {
				return nil, err
			}
		}
		if err := c.disk.create(volumes, there, from); err != nil {
			return nil, err
		}
	default:
		return nil, err
	}
	answer := c.volume(there)
	answer.ContentSource = request.VolumeContentSource
	answer.VolumeContext = maps.Clone(request.Parameters)
	return &csi.CreateVolumeResponse{Volume: answer}, nil
}

func (c *controller) volume(r *record) *csi.Volume {
	volume := &csi.Volume{VolumeId: r.ID, CapacityBytes: r.Capacity}
	if len(c.topology) > 0 {
		volume.AccessibleTopology = []*csi.Topology{{Segments: c.topology}}
	}
	return volume
}

// usable says why a volume cannot be used so.
func usable(capability *csi.VolumeCapability) error {
	if capability.GetMount() == nil && capability.GetBlock() == nil {
		return status.Error(codes.InvalidArgument, "a file system or a device is needed")
	}
	if capability.GetAccessMode() == nil {
		return status.Error(codes.InvalidArgument, "an access mode is needed")
	}
	return nil
}

// modifiable refuses parameters of a VolumeAttributesClass other than `tier`, which can be anything.
func modifiable(parameters map[string]string) error {
	for key := range parameters {
		if key != "tier" {
			return status.Errorf(codes.InvalidArgument, "nothing called %q can be modified", key)
		}
	}
	return nil
}

func (c *controller) DeleteVolume(_ context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	c.disk.lock.Lock()
	defer c.disk.lock.Unlock()
	if request.VolumeId == "" {
		return nil, status.Error(codes.InvalidArgument, "a volume is needed")
	}
	if there, err := c.disk.load(volumes, request.VolumeId); err == nil && len(there.Nodes) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "attached to %v", there.Nodes)
	}
	if used, err := mountsOf(c.disk.folder(volumes, request.VolumeId)); err != nil || len(used) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "mounted on %v (%v)", used, err)
	}
	return &csi.DeleteVolumeResponse{}, c.disk.remove(volumes, request.VolumeId)
}

// alone is whether a mode allows one node at a time.
func alone(mode csi.VolumeCapability_AccessMode_Mode) bool {
	switch mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		return true
	}
	return false
}

func (c *controller) ControllerPublishVolume(_ context.Context, request *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if request.VolumeId == "" || request.NodeId == "" {
		return nil, status.Error(codes.InvalidArgument, "a volume and a node are needed")
	}
	if err := usable(request.VolumeCapability); err != nil {
		return nil, err
	}
	if !c.disk.knows(request.NodeId) {
		return nil, status.Errorf(codes.NotFound, "no node %q", request.NodeId)
	}
	c.disk.lock.Lock()
	defer c.disk.lock.Unlock()
	there, err := c.disk.load(volumes, request.VolumeId)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(there.Nodes, request.NodeId) {
		if len(there.Nodes) > 0 && alone(request.VolumeCapability.AccessMode.Mode) {
			return nil, status.Errorf(codes.FailedPrecondition, "attached to %v", there.Nodes)
		}
		there.Nodes = append(there.Nodes, request.NodeId)
		if err := c.disk.save(volumes, there); err != nil {
			return nil, err
		}
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{attachedTo: request.NodeId}}, nil
}

func (c *controller) ControllerUnpublishVolume(_ context.Context, request *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if request.VolumeId == "" {
		return nil, status.Error(codes.InvalidArgument, "a volume is needed")
	}
	c.disk.lock.Lock()
	defer c.disk.lock.Unlock()
	answer := &csi.ControllerUnpublishVolumeResponse{}
	there, err := c.disk.load(volumes, request.VolumeId)
	if status.Code(err) == codes.NotFound {
		return answer, nil
	}
	if err != nil {
		return nil, err
	}
	there.Nodes = slices.DeleteFunc(there.Nodes, func(n string) bool { return request.NodeId == "" || n == request.NodeId })
	return answer, c.disk.save(volumes, there)
}

func (c *controller) ValidateVolumeCapabilities(_ context.Context, request *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if len(request.VolumeCapabilities) == 0 {
		return nil, status.Error(codes.InvalidArgument, "capabilities are needed")
	}
	if _, err := c.disk.data(volumes, request.VolumeId); err != nil {
		return nil, err
	}
	for _, capability := range request.VolumeCapabilities {
		if err := usable(capability); err != nil {
			return &csi.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
		}
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: request.VolumeContext, VolumeCapabilities: request.VolumeCapabilities, Parameters: request.Parameters,
		MutableParameters: request.MutableParameters,
	}}, nil
}

func (c *controller) ListVolumes(_ context.Context, request *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	c.disk.lock.Lock()
	defer c.disk.lock.Unlock()
	all, err := c.disk.list(volumes)
	if err != nil {
		return nil, err
	}
	some, next, err := page(all, request.StartingToken, request.MaxEntries)
	if err != nil {
		return nil, err
	}
	answer := &csi.ListVolumesResponse{NextToken: next}
	for _, r := range some {
		answer.Entries = append(answer.Entries, &csi.ListVolumesResponse_Entry{
			Volume: c.volume(r), Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: r.Nodes},
		})
	}
	return answer, nil
}

func (c *controller) ControllerExpandVolume(_ context.Context, request *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if request.VolumeId == "" || request.CapacityRange == nil {
		return nil, status.Error(codes.InvalidArgument, "a volume and a size are needed")
	}
	there, err := c.change(request.VolumeId, func(r *record) {
		r.Capacity = max(r.Capacity, request.CapacityRange.GetRequiredBytes())
	})
	if err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: there.Capacity, NodeExpansionRequired: true}, nil
}

func (c *controller) ControllerModifyVolume(_ context.Context, request *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	if request.VolumeId == "" {
		return nil, status.Error(codes.InvalidArgument, "a volume is needed")
	}
	if err := modifiable(request.MutableParameters); err != nil {
		return nil, err
	}
	_, err := c.change(request.VolumeId, func(r *record) { r.Mutable = request.MutableParameters })
	return &csi.ControllerModifyVolumeResponse{}, err
}

func (c *controller) change(id string, change func(*record)) (*record, error) {
	c.disk.lock.Lock()
	defer c.disk.lock.Unlock()
	there, err := c.disk.load(volumes, id)
	if err != nil {
		return nil, err
	}
	change(there)
	return there, c.disk.save(volumes, there)
}
