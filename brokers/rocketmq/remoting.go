package rocketmq

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// command is the header of a frame of RocketMQ's remoting protocol: four bytes of length, four of
// the header's length, the header as JSON, the body.
type command struct {
	Code     int               `json:"code"`
	Language string            `json:"language"`
	Version  int               `json:"version"`
	Opaque   int32             `json:"opaque"` // what a reply is told by
	Flag     int               `json:"flag"`
	Remark   string            `json:"remark,omitempty"`
	Fields   map[string]string `json:"extFields,omitempty"`

	body []byte
}

const (
	language        = "GO"
	protocolVersion = 317 // that of the client library, which brokers of 4.x and 5.x know
	flagReply       = 1
	flagOneWay      = 2
	frameLimit      = 64 << 20 // an answer to a pull is far smaller; more is no frame
)

// encode is c as a frame, signed where there are credentials.
func (c *command) encode(cred primitive.Credentials) ([]byte, error) {
	c.Language, c.Version = language, protocolVersion
	if !cred.IsEmpty() {
		c.sign(cred)
	}
	head, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	frame := make([]byte, 0, 8+len(head)+len(c.body))
	frame = binary.BigEndian.AppendUint32(frame, uint32(4+len(head)+len(c.body)))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(head)))
	return append(append(frame, head...), c.body...), nil
}

// sign adds the signature that brokers with access control ask for: over the values of all
// fields in the order of their names, and the body.
func (c *command) sign(cred primitive.Credentials) {
	if c.Fields == nil {
		c.Fields = make(map[string]string)
	}
	c.Fields["AccessKey"] = cred.AccessKey
	if cred.SecurityToken != "" {
		c.Fields["SecurityToken"] = cred.SecurityToken
	}
	mac := hmac.New(sha1.New, []byte(cred.SecretKey))
	for _, name := range slices.Sorted(maps.Keys(c.Fields)) {
		io.WriteString(mac, c.Fields[name])
	}
	mac.Write(c.body)
	c.Fields["Signature"] = base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// decode is the command of a frame without its length.
func decode(frame []byte) (*command, error) {
	if len(frame) < 4 {
		return nil, fmt.Errorf("a frame of %d bytes has no header", len(frame))
	}
	mark := binary.BigEndian.Uint32(frame)
	if kind := mark >> 24; kind != 0 {
		return nil, fmt.Errorf("a header is serialized as kind %d, not as JSON", kind)
	}
	n := int(mark & 0xffffff)
	if n > len(frame)-4 {
		return nil, fmt.Errorf("a header of %d bytes in a frame of %d", n, len(frame))
	}
	c := new(command)
	if err := json.Unmarshal(frame[4:4+n], c); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	c.body = frame[4+n:]
	return c, nil
}

// conn is a connection to a name server or broker. Calls share it; when it breaks, all of them
// fail at once, and it is never used again.
type conn struct {
	addr   string
	net    net.Conn
	cred   primitive.Credentials
	notify func(*conn, *command) // takes what the broker asks by itself

	writing sync.Mutex

	mu      sync.Mutex
	opaque  int32
	waiting map[int32]chan *command // capacity 1
	err     error                   // why it is broken
	broken  chan struct{}           // closed when it is
	read    sync.WaitGroup
}

const writeTimeout = 10 * time.Second

func newConn(n net.Conn, addr string, cred primitive.Credentials, notify func(*conn, *command)) *conn {
	c := &conn{addr: addr, net: n, cred: cred, notify: notify, waiting: make(map[int32]chan *command), broken: make(chan struct{})}
	c.read.Go(c.reader)
	return c
}

// reader hands replies to those who wait for them, until the connection breaks.
func (c *conn) reader() {
	r := bufio.NewReaderSize(c.net, 64<<10)
	for {
		var size [4]byte
		if _, err := io.ReadFull(r, size[:]); err != nil {
			c.fail(err)
			return
		}
		n := binary.BigEndian.Uint32(size[:])
		if n > frameLimit {
			c.fail(fmt.Errorf("a frame of %d bytes: the other side speaks another protocol", n))
			return
		}
		frame := make([]byte, n)
		if _, err := io.ReadFull(r, frame); err != nil {
			c.fail(err)
			return
		}
		cmd, err := decode(frame)
		if err != nil {
			c.fail(err)
			return
		}
		if cmd.Flag&flagReply == 0 {
			c.notify(c, cmd)
			continue
		}
		c.mu.Lock()
		answer := c.waiting[cmd.Opaque]
		delete(c.waiting, cmd.Opaque)
		c.mu.Unlock()
		if answer != nil { // else its caller has given up
			answer <- cmd
		}
	}
}

// fail breaks the connection, once.
func (c *conn) fail(err error) {
	c.mu.Lock()
	first := c.err == nil
	if first {
		c.err = err
		close(c.broken)
	}
	c.mu.Unlock()
	if first {
		c.net.Close()
	}
}

var errCut = errors.New("closed here")

// close breaks the connection and waits for its reader.
func (c *conn) close() {
	c.fail(errCut)
	c.read.Wait()
}

func (c *conn) alive() bool {
	select {
	case <-c.broken:
		return false
	default:
		return true
	}
}

// call sends cmd and waits for its reply. When ctx ends first the reply is dropped; the
// connection stays, unless its owner breaks it. Nothing is sent once ctx has ended.
func (c *conn) call(ctx context.Context, cmd command) (*command, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w", c.addr, context.Cause(ctx))
	}
	answer := make(chan *command, 1)
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.lost()
	}
	c.opaque++
	cmd.Opaque = c.opaque
	c.waiting[cmd.Opaque] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, cmd.Opaque)
		c.mu.Unlock()
	}()
	if err := c.write(&cmd); err != nil {
		return nil, err
	}
	select {
	case reply := <-answer:
		return reply, nil
	case <-c.broken:
		return nil, c.lost()
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", c.addr, context.Cause(ctx))
	}
}

func (c *conn) write(cmd *command) error {
	frame, err := cmd.encode(c.cred)
	if err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.net.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		c.fail(err)
		return c.lost()
	}
	if _, err := c.net.Write(frame); err != nil { // half a frame may be on its way
		c.fail(err)
		return c.lost()
	}
	return nil
}

func (c *conn) lost() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("connection to %s: %w", c.addr, c.err)
}
