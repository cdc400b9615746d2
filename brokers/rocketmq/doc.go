// Package rocketmq consumes from and publishes to RocketMQ by its remoting protocol.
//
//	source, err := rocketmq.NewSource(rocketmq.Cluster{NameServers: servers}, "billing", []string{"orders"}, nil)
//	c, err := consumer.New(source, guard, handler, nil)
//	err = c.Run(ctx)
package rocketmq
